#include "tests/reference/sharing_cases.h"

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
}

}  // namespace reference
