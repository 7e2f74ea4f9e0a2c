// Package rule holds the policy: fewest sessions for its capacity; an instance outside one zone costs extra.
//
// To answer with an error of the contract, return it: `lifecycle.MakeErrorInvalidConfig("zone must be a text")`. A
// panic ends the instance.
//
// Invariant: loads.Pending holds what the host said plus every row of Committed since, and nothing else is remembered
// between two calls. Time is request.NowMs, chance is request.Seed: nothing else may vary. Mind that the order of a
// map does.
package rule

import (
	"encoding/json"
	"math"
	"slices"

	wit "go.bytecodealliance.org/pkg/wit/types"

	lifecycle "policy/gen/fulcrum_policy_lifecycle"
	scoring "policy/gen/fulcrum_policy_scoring"
)

const (
	draining = 2
	dead     = 4
)

const schema = `{
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "zone": {"description": "Zone to prefer; empty for none.", "type": "string", "pattern": "^[A-Za-z0-9._-]*$", "default": ""},
    "farCost": {"description": "Cost of an instance outside it. Unit: sessions per capacity.", "type": "number", "minimum": 0, "maximum": 1000000, "default": 10}
  }
}`

var (
	config = struct {
		Zone    string  `json:"zone"`
		FarCost float64 `json:"farCost"`
	}{FarCost: 10}
	rows  []scoring.Instance
	loads scoring.Loads
)

// Describe says what the policy is.
func Describe() lifecycle.Description {
	return lifecycle.Description{
		Name:         "near-first",
		Version:      "0.1.0",
		Summary:      "Fewest sessions for its capacity, one zone preferred.",
		ConfigSchema: schema,
	}
}

// Configure takes the configuration, which the host has checked against the schema; fields that are absent keep their
// defaults.
func Configure(text string) *lifecycle.Error {
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		refusal := lifecycle.MakeErrorInvalidConfig(err.Error())
		return &refusal
	}
	return nil
}

// Roster replaces the roster.
func Roster(instances []scoring.Instance) *lifecycle.Error {
	rows = instances
	return nil
}

// Refresh replaces the loads.
func Refresh(columns scoring.Loads) *lifecycle.Error {
	loads = columns
	return nil
}

// Recommend chooses the cheapest row; of equal scores the first.
func Recommend(request scoring.Request) (scoring.Recommendation, *lifecycle.Error) {
	takeIn(request.Committed)
	best, found := scoring.Recommendation{}, false
	for row := range uint32(len(rows)) {
		if !choosable(row, request) {
			continue
		}
		score := near(row) + far(row)
		if !found || score < best.Score {
			best, found = scoring.Recommendation{Row: row, Score: score}, true
		}
	}
	if !found {
		refusal := lifecycle.MakeErrorNoCandidate()
		return best, &refusal
	}
	return best, nil
}

// Explain names the terms of each row that may be chosen.
func Explain(request scoring.Request) ([]scoring.ScoreParts, *lifecycle.Error) {
	takeIn(request.Committed)
	all := make([]scoring.ScoreParts, 0, len(rows))
	for row := range uint32(len(rows)) {
		if !choosable(row, request) {
			continue
		}
		parts := []wit.Tuple2[string, float64]{{F0: "sessions", F1: near(row)}, {F0: "far", F1: far(row)}}
		all = append(all, scoring.ScoreParts{Row: row, Score: near(row) + far(row), Parts: parts})
	}
	return all, nil
}

// The law of committed: what was given out meanwhile is pending from now on.
func takeIn(committed []uint32) {
	for _, row := range committed {
		if loads.Pending[row] < math.MaxUint32 {
			loads.Pending[row]++
		}
	}
}

func choosable(row uint32, request scoring.Request) bool {
	if loads.Flags[row]&(draining|dead) != 0 {
		return false
	}
	_, avoided := slices.BinarySearch(request.Avoid, row)
	return !avoided
}

func near(row uint32) float64 {
	return (float64(loads.Sessions[row]) + float64(loads.Pending[row])) / rows[row].Capacity
}

func far(row uint32) float64 {
	if config.Zone != "" && rows[row].Zone != config.Zone {
		return config.FarCost
	}
	return 0
}
