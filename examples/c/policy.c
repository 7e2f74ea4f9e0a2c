// Fewest sessions for its capacity; an instance outside one zone costs extra.
//
// A function answers true, or fills `err` and answers false. Arguments belong to this side: keep or free them. What is
// handed out is freed after the call: it must come from malloc.
//
// Invariant: `loads.pending` holds what the host said plus every row of `committed` since, and nothing else is
// remembered between two calls. Time is `request->now_ms`, chance is `request->seed`: nothing else may vary.

#include <stdlib.h>
#include <string.h>

#include "scoring_policy.h"

typedef exports_fulcrum_policy_lifecycle_error_t error_t;
typedef exports_fulcrum_policy_scoring_request_t request_t;
typedef exports_fulcrum_policy_scoring_score_parts_t score_parts_t;

enum { DRAINING = 2, DEAD = 4 };

static const char SCHEMA[] =
    "{\"type\": \"object\", \"additionalProperties\": false, \"properties\": {"
    "\"zone\": {\"description\": \"Zone to prefer; empty for none.\", \"type\": \"string\", "
    "\"pattern\": \"^[A-Za-z0-9._-]*$\", \"default\": \"\"}, "
    "\"farCost\": {\"description\": \"Cost of an instance outside it. Unit: sessions per capacity.\", "
    "\"type\": \"number\", \"minimum\": 0, \"maximum\": 1000000, \"default\": 10}}}";

static scoring_policy_string_t zone;
static double far_cost = 10;
static exports_fulcrum_policy_scoring_list_instance_t rows;
static exports_fulcrum_policy_scoring_loads_t loads;

// Returns where the value of a field begins in a configuration, NULL if the field is absent.
//
// It need not know all of JSON: the schema allows two fields, and no text with a quote or a backslash in it. The host
// writes the text without spaces and without needless escapes.
static const char *field(const char *config, const char *key) {
  const char *at = strstr(config, key);
  return at == NULL ? NULL : at + strlen(key);
}

void exports_fulcrum_policy_lifecycle_describe(exports_fulcrum_policy_lifecycle_description_t *ret) {
  scoring_policy_string_dup(&ret->name, "near-first");
  scoring_policy_string_dup(&ret->version, "0.1.0");
  scoring_policy_string_dup(&ret->summary, "Fewest sessions for its capacity, one zone preferred.");
  scoring_policy_string_dup(&ret->config_schema, SCHEMA);
}

bool exports_fulcrum_policy_lifecycle_configure(scoring_policy_string_t *config, error_t *err) {
  char *text = malloc(config->len + 1);
  if (text == NULL) {
    err->tag = EXPORTS_FULCRUM_POLICY_LIFECYCLE_ERROR_FAILED;
    scoring_policy_string_dup(&err->val.failed, "no memory");
    return false;
  }
  memcpy(text, config->ptr, config->len);
  text[config->len] = '\0';
  scoring_policy_string_free(config);
  const char *at = field(text, "\"zone\":\"");
  if (at != NULL) scoring_policy_string_dup_n(&zone, at, strcspn(at, "\""));
  at = field(text, "\"farCost\":");
  if (at != NULL) far_cost = strtod(at, NULL);
  free(text);
  return true;
}

bool exports_fulcrum_policy_scoring_roster(exports_fulcrum_policy_scoring_list_instance_t *instances, error_t *err) {
  (void)err;
  exports_fulcrum_policy_scoring_list_instance_free(&rows);
  rows = *instances;
  return true;
}

bool exports_fulcrum_policy_scoring_refresh(exports_fulcrum_policy_scoring_loads_t *columns, error_t *err) {
  (void)err;
  exports_fulcrum_policy_scoring_loads_free(&loads);
  loads = *columns;
  return true;
}

// The law of `committed`: what was given out meanwhile is pending from now on.
static void take_in(const request_t *request) {
  for (size_t i = 0; i < request->committed.len; i++) {
    uint32_t *pending = &loads.pending.ptr[request->committed.ptr[i]];
    if (*pending < UINT32_MAX) (*pending)++;
  }
}

static bool choosable(const request_t *request, uint32_t row) {
  if ((loads.flags.ptr[row] & (DRAINING | DEAD)) != 0) return false;
  // `avoid` ascends; with a filter by label it may name half of all rows.
  size_t low = 0, high = request->avoid.len;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (request->avoid.ptr[middle] < row) low = middle + 1;
    else high = middle;
  }
  return low == request->avoid.len || request->avoid.ptr[low] != row;
}

static double near_cost(uint32_t row) {
  return ((double)loads.sessions.ptr[row] + (double)loads.pending.ptr[row]) / rows.ptr[row].capacity;
}

static double zone_cost(uint32_t row) {
  const scoring_policy_string_t *own = &rows.ptr[row].zone;
  bool is_far = zone.len > 0 && (own->len != zone.len || memcmp(own->ptr, zone.ptr, zone.len) != 0);
  return is_far ? far_cost : 0;
}

bool exports_fulcrum_policy_scoring_recommend(request_t *request, exports_fulcrum_policy_scoring_recommendation_t *ret,
                                              error_t *err) {
  take_in(request);
  bool found = false;
  for (uint32_t row = 0; row < rows.len; row++) {
    if (!choosable(request, row)) continue;
    double score = near_cost(row) + zone_cost(row);
    // Of equal scores the first row wins.
    if (!found || score < ret->score) {
      ret->row = row;
      ret->score = score;
      found = true;
    }
  }
  if (!found) err->tag = EXPORTS_FULCRUM_POLICY_LIFECYCLE_ERROR_NO_CANDIDATE;
  exports_fulcrum_policy_scoring_request_free(request);
  return found;
}

bool exports_fulcrum_policy_scoring_explain(request_t *request,
                                            exports_fulcrum_policy_scoring_list_score_parts_t *ret, error_t *err) {
  take_in(request);
  ret->ptr = malloc(rows.len * sizeof(score_parts_t));
  ret->len = 0;
  for (uint32_t row = 0; ret->ptr != NULL && row < rows.len; row++) {
    if (!choosable(request, row)) continue;
    score_parts_t *parts = &ret->ptr[ret->len];
    parts->row = row;
    parts->score = near_cost(row) + zone_cost(row);
    parts->parts.len = 2;
    parts->parts.ptr = malloc(2 * sizeof(scoring_policy_tuple2_string_f64_t));
    if (parts->parts.ptr == NULL) abort();
    scoring_policy_string_dup(&parts->parts.ptr[0].f0, "sessions");
    parts->parts.ptr[0].f1 = near_cost(row);
    scoring_policy_string_dup(&parts->parts.ptr[1].f0, "far");
    parts->parts.ptr[1].f1 = zone_cost(row);
    ret->len++;
  }
  exports_fulcrum_policy_scoring_request_free(request);
  if (ret->ptr == NULL && rows.len > 0) {
    err->tag = EXPORTS_FULCRUM_POLICY_LIFECYCLE_ERROR_UNSUPPORTED;
    return false;
  }
  return true;
}
