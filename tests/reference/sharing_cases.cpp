#include "tests/reference/sharing_cases.h"

#include "tests/reference/tiny_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <utility>

namespace reference {

std::vector<Case> sharing_cases(const std::string& kv, const Weights* weights, int n_decode) {
    std::vector<Case> cases;
    const auto add = [&](Case c, const std::string& keys) {
        c.spec += (c.spec.find(':') == std::string::npos ? ":" : ",") + keys + "kv=" + kv;
        c.weights = weights;
        cases.push_back(c);
    };
    for (const char* preset : {"full", "window", "sink", "key", "h2o", "tova", "keyformer", "a2sf"})
        add(preset_case(preset, 7, n_decode), "");
    for (const auto& [scope, unit] : {std::pair("layer", Unit::layer), {"shared", Unit::shared}}) {
        Case c = preset_case("h2o", 7, n_decode);
        c.policy.unit = unit;
        add(c, fmt::format("scope={},", scope));
    }
    for (const auto& [pool, over] : {std::pair("max", PoolOver::max), {"sum", PoolOver::sum}}) {
        Case c = preset_case("a2sf", 7, n_decode);
        c.policy.pool = over;
        add(c, fmt::format("pool={},", pool));
    }
    Case stepwise = preset_case("h2o", 7, n_decode);
    stepwise.policy.stepwise = true;
    add(stepwise, "prefill=stepwise,");
    Case placed = preset_case("h2o", 7, n_decode);
    placed.policy.places = Places::cache;
    add(placed, "positions=cache,");
    return cases;
}

void expect_agreement(const Agreement& a) {
    for (const double share : {a.next_logits, a.attention, a.logits, a.noise, a.scores})
        EXPECT_LT(share, 1.0) << a.worst;
    EXPECT_LE(a.n_near_ties, 1 + a.n_selections / 500);
    ::testing::Test::RecordProperty("near_ties", a.n_near_ties);
    ::testing::Test::RecordProperty("selections", a.n_selections);
}

void expect_sharing_agrees(const Sharing& p, const BackendOf& backend_of) {
    TinyShape shape;
    shape.n_layers = 5;
    shape.n_kv_heads = 4;
    const TinyModel tiny(shape);
    const auto model = keyhole::load_model(tiny.folder());
    const Weights own = load_weights(tiny.folder());
    const Weights shared = shared_weights(own, p.m, p.g, p.released);
    const int n_prompt = 19, n_decode = 10;
    const std::vector<int> tokens = random_tokens(n_prompt + n_decode, 5);
    const std::span<const int> all(tokens);
    std::vector<Case> cases =
        sharing_cases(p.released ? fmt::format("{},merge=released", p.kv) : p.kv, &shared, n_decode);
    cases.push_back(preset_case("h2o", 7, n_decode));
    const auto backend = backend_of ? backend_of(model) : nullptr;
    expect_agreement(
        compare_with_reference(model, own, cases, all.first(n_prompt), all.subspan(n_prompt), backend.get()));
}

void expect_own_sharing_agrees(const BackendOf& backend_of) {
    TinyShape shape;
    shape.n_layers = 5;
    shape.n_kv_layers = 2;
    shape.n_kv_heads = 2;
    const TinyModel tiny(shape);
    const auto model = keyhole::load_model(tiny.folder());
    const Weights own = load_weights(tiny.folder());
    ASSERT_EQ(own.owner, (std::vector<int>{0, 0, 2, 2, 2}));
    const std::vector<int> tokens = random_tokens(26, 6);
    const std::span<const int> all(tokens);
    std::vector<Case> cases;
    for (const char* preset : {"full", "h2o", "tova", "keyformer"})
        cases.push_back(preset_case(preset, 6, 8));
    const auto backend = backend_of ? backend_of(model) : nullptr;
    expect_agreement(
        compare_with_reference(model, own, cases, all.first(18), all.subspan(18), backend.get()));
}

std::string first_difference(const LaneRows& a, std::size_t lane, const LaneRows& b, std::size_t other) {
    for (std::size_t row = 0; row < a[lane].size(); ++row)
        if (const std::string found = difference(a[lane][row], b[other][row]); !found.empty())
            return fmt::format("row {}: {}", row, found);
    return {};
}

void expect_lanes_stand_alone(const std::vector<std::string>& specs, const RunLanes& run) {
    const std::vector<int> tokens = random_tokens(40, 8);
    const std::span<const int> prompt = std::span(tokens).first(30), decode = std::span(tokens).subspan(30);
    const LaneRows together = run(specs, prompt, decode);
    for (std::size_t lane = 0; lane < specs.size(); ++lane)
        EXPECT_EQ(first_difference(together, lane, run(std::span(specs).subspan(lane, 1), prompt, decode), 0),
                  "")
            << specs[lane];
}

}  // namespace reference
