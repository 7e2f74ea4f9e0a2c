// Package export_fulcrum_policy_claiming connects the generated exports with the rule.
package export_fulcrum_policy_claiming

import (
	wit "go.bytecodealliance.org/pkg/wit/types"

	claiming "policy/gen/fulcrum_policy_claiming"
	lifecycle "policy/gen/fulcrum_policy_lifecycle"
	"policy/rule"
)

func Plan(cycle claiming.Cycle) wit.Result[claiming.Changes, lifecycle.Error] {
	changes, err := rule.Plan(cycle)
	if err != nil {
		return wit.Err[claiming.Changes](*err)
	}
	return wit.Ok[claiming.Changes, lifecycle.Error](changes)
}
