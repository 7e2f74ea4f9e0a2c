// Free partitions to the subscriber with the fewest, then single moves until counts are even.
//
// A function answers true, or fills `err` and answers false. Arguments belong to this side: keep or free them. What is
// handed out is freed after the call: it must come from malloc.
//
// Invariant: `plan` is a pure function of the cycle. Time is `cycle->now_ms`, chance is `cycle->seed`.

#include <stdlib.h>
#include <string.h>

#include "claiming_policy.h"

typedef exports_fulcrum_policy_lifecycle_error_t error_t;
typedef exports_fulcrum_policy_claiming_changes_t changes_t;
typedef exports_fulcrum_policy_claiming_cycle_t cycle_t;
typedef exports_fulcrum_policy_claiming_member_t member_t;

enum { FREE, EVEN, REASONS };

void exports_fulcrum_policy_lifecycle_describe(exports_fulcrum_policy_lifecycle_description_t *ret) {
  claiming_policy_string_dup(&ret->name, "{{name}}");
  claiming_policy_string_dup(&ret->version, "0.1.0");
  claiming_policy_string_dup(&ret->summary,
                             "Free partitions to the member with the fewest, then single moves until counts are even.");
  claiming_policy_string_dup(&ret->config_schema, "{\"type\": \"object\", \"additionalProperties\": false}");
}

bool exports_fulcrum_policy_lifecycle_configure(claiming_policy_string_t *config, error_t *err) {
  (void)err;
  claiming_policy_string_free(config);
  return true;
}

// The answer is freed by the bindings, so running out of memory ends the instance: the host starts another.
static void *allocate(size_t count, size_t size) {
  void *found = calloc(count > 0 ? count : 1, size);
  if (found == NULL) abort();
  return found;
}

static bool subscribes(const member_t *member, uint32_t topic) {
  for (size_t i = 0; i < member->topics.len; i++) {
    if (member->topics.ptr[i] == topic) return true;
  }
  return false;
}

// Returns the subscriber of a topic with the fewest partitions, of equals the first; -1 if nobody subscribes.
static int32_t emptiest(const cycle_t *cycle, uint32_t topic, const uint32_t *counts) {
  int32_t best = -1;
  for (size_t row = 0; row < cycle->members.len; row++) {
    bool is_better = best < 0 || counts[row] < counts[best];
    if (is_better && subscribes(&cycle->members.ptr[row], topic)) best = (int32_t)row;
  }
  return best;
}

bool exports_fulcrum_policy_claiming_plan(cycle_t *cycle, changes_t *ret, error_t *err) {
  (void)err;
  size_t partitions = cycle->owner.len, claims = 0;
  uint32_t budget = cycle->movement_budget.is_some ? cycle->movement_budget.val : UINT32_MAX;
  uint32_t *counts = allocate(cycle->members.len, sizeof(uint32_t));
  memset(ret, 0, sizeof *ret);
  ret->partition.ptr = allocate(partitions, sizeof(uint32_t));
  ret->member.ptr = allocate(partitions, sizeof(uint32_t));
  ret->reason.ptr = allocate(partitions, sizeof(uint8_t));
  ret->reasons.ptr = allocate(REASONS, sizeof(claiming_policy_string_t));
  ret->reasons.len = REASONS;
  claiming_policy_string_dup(&ret->reasons.ptr[FREE], "was free");
  claiming_policy_string_dup(&ret->reasons.ptr[EVEN], "evens the counts");
  for (size_t i = 0; i < partitions; i++) {
    if (cycle->owner.ptr[i] >= 0) counts[cycle->owner.ptr[i]]++;
  }

  // Free partitions first: they need no hand-over.
  for (uint8_t reason = FREE; reason <= EVEN; reason++) {
    for (size_t partition = 0; partition < partitions; partition++) {
      int32_t owner = cycle->owner.ptr[partition];
      if ((owner < 0) != (reason == FREE) || cycle->moving.ptr[partition] != 0) continue;
      uint32_t topic = cycle->topic.ptr[partition];
      int32_t member = emptiest(cycle, topic, counts);
      if (member < 0) continue;
      if (reason == EVEN) {
        // An owner that no longer subscribes gives up in any case.
        bool is_even =
            subscribes(&cycle->members.ptr[owner], topic) && counts[member] + 1 >= counts[owner];
        if (is_even || budget == 0) continue;
        budget--;
        counts[owner]--;
      }
      counts[member]++;
      ret->partition.ptr[claims] = (uint32_t)partition;
      ret->member.ptr[claims] = (uint32_t)member;
      ret->reason.ptr[claims] = reason;
      claims++;
    }
  }
  // The bindings free a list by its pointer only if it has entries.
  if (claims == 0) {
    free(ret->partition.ptr);
    free(ret->member.ptr);
    free(ret->reason.ptr);
  }
  ret->partition.len = ret->member.len = ret->reason.len = claims;
  free(counts);
  exports_fulcrum_policy_claiming_cycle_free(cycle);
  return true;
}
