// Package rule holds the policy: free partitions to the subscriber with the fewest, then single moves until counts are
// even.
//
// To answer with an error of the contract, return it: `lifecycle.MakeErrorInvalidInput("owner is out of range")`. A
// panic ends the instance.
//
// Invariant: Plan is a pure function of the cycle. Time is cycle.NowMs, chance is cycle.Seed. Mind that the order of a
// map varies.
package rule

import (
	"math"
	"slices"

	wit "go.bytecodealliance.org/pkg/wit/types"

	claiming "policy/gen/fulcrum_policy_claiming"
	lifecycle "policy/gen/fulcrum_policy_lifecycle"
)

const (
	free = iota
	even
)

var reasons = []string{"was free", "evens the counts"}

// Describe says what the policy is.
func Describe() lifecycle.Description {
	return lifecycle.Description{
		Name:         "{{name}}",
		Version:      "0.1.0",
		Summary:      "Free partitions to the member with the fewest, then single moves until counts are even.",
		ConfigSchema: `{"type": "object", "additionalProperties": false}`,
	}
}

// Configure takes the configuration: there is none.
func Configure(string) *lifecycle.Error {
	return nil
}

// Plan plans one cycle.
func Plan(cycle claiming.Cycle) (claiming.Changes, *lifecycle.Error) {
	changes := claiming.Changes{Reasons: reasons, NextCycleMs: wit.None[uint32]()}
	counts := make([]int, len(cycle.Members))
	for _, owner := range cycle.Owner {
		if owner >= 0 {
			counts[owner]++
		}
	}
	budget := cycle.MovementBudget.SomeOr(math.MaxUint32)

	// Free partitions first: they need no hand-over.
	for reason := uint8(free); reason <= even; reason++ {
		for partition, owner := range cycle.Owner {
			if (owner < 0) != (reason == free) || cycle.Moving[partition] != 0 {
				continue
			}
			topic := cycle.Topic[partition]
			member := emptiest(topic, cycle.Members, counts)
			if member < 0 {
				continue
			}
			if reason == even {
				// An owner that no longer subscribes gives up in any case.
				isEven := subscribes(cycle.Members[owner], topic) && counts[member]+1 >= counts[owner]
				if isEven || budget == 0 {
					continue
				}
				budget--
				counts[owner]--
			}
			counts[member]++
			changes.Partition = append(changes.Partition, uint32(partition))
			changes.Member = append(changes.Member, uint32(member))
			changes.Reason = append(changes.Reason, reason)
		}
	}
	return changes, nil
}

// Returns the subscriber of a topic with the fewest partitions, of equals the first; -1 if nobody subscribes.
func emptiest(topic uint32, members []claiming.Member, counts []int) int {
	best := -1
	for row, member := range members {
		if subscribes(member, topic) && (best < 0 || counts[row] < counts[best]) {
			best = row
		}
	}
	return best
}

func subscribes(member claiming.Member, topic uint32) bool {
	_, found := slices.BinarySearch(member.Topics, topic)
	return found
}
