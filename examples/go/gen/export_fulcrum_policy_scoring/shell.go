// Package export_fulcrum_policy_scoring connects the generated exports with the rule.
package export_fulcrum_policy_scoring

import (
	wit "go.bytecodealliance.org/pkg/wit/types"

	lifecycle "policy/gen/fulcrum_policy_lifecycle"
	scoring "policy/gen/fulcrum_policy_scoring"
	"policy/rule"
)

func Roster(instances []scoring.Instance) wit.Result[wit.Unit, lifecycle.Error] {
	return result(wit.Unit{}, rule.Roster(instances))
}

func Refresh(loads scoring.Loads) wit.Result[wit.Unit, lifecycle.Error] {
	return result(wit.Unit{}, rule.Refresh(loads))
}

func Recommend(request scoring.Request) wit.Result[scoring.Recommendation, lifecycle.Error] {
	return result(rule.Recommend(request))
}

func Explain(request scoring.Request) wit.Result[[]scoring.ScoreParts, lifecycle.Error] {
	return result(rule.Explain(request))
}

func result[T any](value T, err *lifecycle.Error) wit.Result[T, lifecycle.Error] {
	if err != nil {
		return wit.Err[T](*err)
	}
	return wit.Ok[T, lifecycle.Error](value)
}
