/// Lanes that share KV heads otherwise than their model: specs for a backend and the same policies for the
/// reference.
#pragma once

#include "tests/reference/engine_run.h"

#include <array>
#include <functional>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

namespace reference {

/// Returns the cases of one sharing ("gqa:2", "(mlkv:m=2,g=1),merge=released"): every preset, scope and pool,
/// a stepwise prompt, and moved positions. weights: the model's weights, merged for this sharing.
std::vector<Case> sharing_cases(const std::string& kv, const Weights* weights, int n_decode);

/// Expects values within tolerance and no more near ties than rounding explains.
void expect_agreement(const Agreement& agreement);

/// A way of sharing: m layers own g KV heads each. released: merged as the released code does.
struct Sharing {
    const char* kv;
    int m, g;
    bool released = false;
};
/// Names the sharing in gtest's test names.
inline void PrintTo(const Sharing& sharing, std::ostream* out) {
    *out << sharing.kv << (sharing.released ? ",released" : "");
}
inline constexpr std::array kSharings = {
    Sharing{"gqa:2", 5, 2},          Sharing{"mqa", 5, 1},
    Sharing{"(mlkv:m=2,g=2)", 2, 2}, Sharing{"(mlkv:m=3,g=1)", 3, 1},
    Sharing{"(mlkv:m=1,g=4)", 1, 4}, Sharing{"(mlkv:m=2,g=1)", 2, 1, true}};

/// Makes the backend under test for a model; null: the CPU backend.
using BackendOf =
    std::function<std::unique_ptr<keyhole::Backend>(const std::shared_ptr<const keyhole::Model>&)>;

/// Checks sharing_cases() on a model of five layers and four KV heads, beside a lane of the model itself.
void expect_sharing_agrees(const Sharing& sharing, const BackendOf& backend_of);
/// Checks lanes of a model whose own five layers share KV heads; two of them are owners.
void expect_own_sharing_agrees(const BackendOf& backend_of);

/// Returns the first row in which two lanes differ, in words; empty when none does.
std::string first_difference(const LaneRows& a, std::size_t lane, const LaneRows& b, std::size_t other);

/// Runs lanes on a prompt and on the decoded tokens after it.
using RunLanes = std::function<LaneRows(std::span<const std::string> specs, std::span<const int> prompt,
                                        std::span<const int> decode)>;
/// Expects each lane to give the same bits as it gives alone.
void expect_lanes_stand_alone(const std::vector<std::string>& specs, const RunLanes& run);

}  // namespace reference
