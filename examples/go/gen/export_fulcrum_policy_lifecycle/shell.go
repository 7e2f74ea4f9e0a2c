// Package export_fulcrum_policy_lifecycle connects the generated exports with the rule.
package export_fulcrum_policy_lifecycle

import (
	wit "go.bytecodealliance.org/pkg/wit/types"

	lifecycle "policy/gen/fulcrum_policy_lifecycle"
	"policy/rule"
)

func Describe() lifecycle.Description {
	return rule.Describe()
}

func Configure(config string) wit.Result[wit.Unit, lifecycle.Error] {
	if err := rule.Configure(config); err != nil {
		return wit.Err[wit.Unit](*err)
	}
	return wit.Ok[wit.Unit, lifecycle.Error](wit.Unit{})
}
