/// Who shares a budget, as the field's specification has it (sections 6, 7, 12 and 13): slow, in whole
/// numbers, by sorting everything. Tests compare the engine with it. Shares no code with the engine.
#pragma once

#include "tests/reference/reference_model.h"

#include <cstdint>
#include <vector>

namespace reference {

/// A number as a quotient, so that shares are compared without rounding.
struct Quotient {
    std::int64_t over = 0, under = 1;
};

/// Returns how many tokens each layer keeps beside the `kept` ones that never leave (section 6): a straight
/// line whose mean is budget - kept; the last layer has that mean over beta. as_code: as KVCache-Factory.
std::vector<int> pyramid_line(int n_layers, int budget, int kept, int n_prompt, Quotient beta, bool as_code);

/// A token that may leave. Of equal values the larger plain one is better, then the younger token, then that
/// of the higher head (rule G4).
struct Competitor {
    double value = 0, plain = 0;
    int position = 0, head = 0;
    bool operator<(const Competitor& other) const;  ///< is better
};
/// Returns whether rounding of eps cannot change which tokens are among the first n. sorted: the best first.
bool is_decided(const std::vector<Competitor>& sorted, int n, double eps);
/// Returns whether two values differ by no more than rounding does.
bool is_near(double a, double b, double eps);

/// How many competing tokens each head keeps. is_decided: whatever rounding of eps does.
struct Rooms {
    std::vector<int> of_head;
    bool is_decided = true;
};
/// Shares what the heads may keep beside what never leaves (section 7): of head g
///     floor percent of own[g], and the other percent of its tokens among the best of all,
/// in whole numbers by the largest remainder. as_code: Ada-KV's, which rounds each head by itself.
Rooms shared_rooms(std::vector<Competitor> tokens, const std::vector<int>& own, int floor_percent,
                   bool as_code, double eps);

/// Returns what is wrong with CriticalKV's kept set; empty: nothing (section 12). The best n_first by value
/// stay, and then the best by product; of values that rounding may swap, any. kept: by token.
const char* wrong_with_two_stages(const std::vector<Competitor>& tokens, const Vector& products,
                                  const std::vector<bool>& kept, int n_first, double eps);

/// Returns which heads keep all, by numbers of layers and their heads (section 13): with a sparsity that
/// share of the heads streams, those with the least numbers, of equal ones the lower layer and head first;
/// without, those below the threshold.
std::vector<bool> retrieval_heads(const Vector& numbers, const double* sparsity, double threshold);

}  // namespace reference
