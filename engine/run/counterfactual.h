/// What a lane says if it had never evicted certain tokens: the question and the answer. Plain values, for
/// any thread; the session computes it.
#pragma once

#include "engine/run/answer.h"
#include "engine/trace/record.h"

#include <string>
#include <vector>

namespace keyhole {

/// A counterfactual: what a lane says next if it had never evicted certain tokens.
struct Counterfactual {
    int lane_id = 0;
    int position = 0, n_tokens = 1;  ///< the first of these tokens, and their number
    int row = 0;                     ///< the answer is for the text after this row
    std::vector<int> kv_heads;       ///< that had evicted one of them
    std::vector<TopToken> with;      ///< most likely next tokens without these evictions, best first
    double kl = 0;                   ///< KL(as it is || without these evictions), nats
    float log_prob_as_is = 0;        ///< of with.front(), with these evictions
    /// The text that follows the row by the lane's own choices. Neither copy evicts more tokens meanwhile, so
    /// that these evictions are the only difference. Empty without RunSpec::answer_end.
    LaneAnswer answer_as_is, answer_with;
};

/// What is asked: see Session::counterfactual().
struct CounterfactualRequest {
    int lane = 0;
    int position = 0, n_tokens = 1;
    int row = -1;  ///< -1: the newest

    int last() const { return position + n_tokens - 1; }
    /// Returns "token 7" or "tokens 7 to 9".
    std::string text() const;
};

/// Returns whether a lane with this policy can be asked: it neither hides tokens nor moves keys.
bool attends_plainly(const ResolvedPolicy& policy);

}  // namespace keyhole
