/// Lanes that share KV heads otherwise than their model, as a backend is told them and as the reference takes them.
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

/// Cases of one sharing ("gqa:2", "(mlkv:m=2,g=1),merge=released"): every preset, every scope, every pool, a stepwise prompt, moved
/// positions. weights: of the model shared so.
std::vector<Case> sharing_cases(const std::string& kv, const Weights* weights, int n_decode);

/// Values within tolerance, and no more near ties than rounding explains.
void expect_agreement(const Agreement& agreement);

/// A way of sharing: m layers own g KV heads each. released: merged as the released code does.
struct Sharing {
    const char* kv;
    int m, g;
    bool released = false;
};
/// For gtest, in the names of tests.
inline void PrintTo(const Sharing& sharing, std::ostream* out) {
    *out << sharing.kv << (sharing.released ? ",released" : "");
}
inline constexpr std::array kSharings = {
    Sharing{"gqa:2", 5, 2},          Sharing{"mqa", 5, 1},
    Sharing{"(mlkv:m=2,g=2)", 2, 2}, Sharing{"(mlkv:m=3,g=1)", 3, 1},
    Sharing{"(mlkv:m=1,g=4)", 1, 4}, Sharing{"(mlkv:m=2,g=1)", 2, 1, true}};

/// Gives the backend under test of a model; null: the CPU's.
using BackendOf =
    std::function<std::unique_ptr<keyhole::Backend>(const std::shared_ptr<const keyhole::Model>&)>;

/// sharing_cases() of a model of five layers and four KV heads, beside them a lane of the model itself.
void expect_sharing_agrees(const Sharing& sharing, const BackendOf& backend_of);
/// Lanes of a model whose own five layers share KV heads, two of them owners.
void expect_own_sharing_agrees(const BackendOf& backend_of);

/// The first row in which two lanes differ, in words; empty when there is none.
std::string first_difference(const LaneRows& a, std::size_t lane, const LaneRows& b, std::size_t other);

/// Runs lanes on a prompt and what is decoded after it.
using RunLanes = std::function<LaneRows(std::span<const std::string> specs, std::span<const int> prompt,
                                        std::span<const int> decode)>;
/// Every lane gives the bits that it gives alone.
void expect_lanes_stand_alone(const std::vector<std::string>& specs, const RunLanes& run);

}  // namespace reference
