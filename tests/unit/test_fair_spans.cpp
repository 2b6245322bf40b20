// Spans that share the budget against the reference in double on both backends, over shared KV heads,
// changes, forks and rewinds.
#include "engine/base/index.h"
#include "engine/device/make_backend.h"
#include "engine/session/session.h"
#include "tests/reference/backend_pair.h"
#include "tests/reference/both_runs.h"
#include "tests/reference/compared_text.h"
#include "tests/reference/sanitizer.h"
#include "tests/reference/sharing_cases.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>

namespace reference::test_fair_spans {
namespace {

using keyhole::to_index;

constexpr int kPrompt = 24, kDecode = 16;
constexpr int kOpen = std::numeric_limits<int>::max();

/// Spans as a spec and as the reference have them.
struct TwinSpans {
    std::string text;
    std::vector<std::pair<int, int>> of_reference;
};
const std::vector<TwinSpans> kSpans = {{"a@0..2 b@3..15 c@16..23", {{0, 2}, {3, 15}, {16, 23}}},
                                       {"a@0..4 b@5..", {{0, 4}, {5, kOpen}}},
                                       {"a@0..23 new@24..", {{0, 23}, {24, kOpen}}}};

/// AddressSanitizer takes the first kind alone: the others run the same code, and it takes long.
std::size_t n_kinds() {
    return under_address_sanitizer() ? 1 : kSpans.size();
}
/// Returns how many selections are compared at least, of those that all kinds have.
int of_all_kinds(int n_selections) {
    return n_selections / static_cast<int>(kSpans.size() / n_kinds());
}

/// Returns a case of a preset with each of these spans.
template <class Change>
std::vector<Case> fair_cases(const std::string& preset, int budget, const std::string& keys, Change change) {
    std::vector<Case> cases;
    for (const TwinSpans& spans : std::span(kSpans).first(n_kinds())) {
        Case c = preset_case(preset, budget, kDecode);
        c.spec += fmt::format(",spans=(fair {}){}", spans.text, keys);
        c.policy.spans = spans.of_reference;
        change(c.policy);
        cases.push_back(c);
    }
    return cases;
}

// Section 18: each span keeps its share of the budget, by its own rows.
TEST(FieldSpans, FairOnesAgreeWithTheReferenceOnBothBackends) {
    for (const int n_kv_heads : {2, 1}) {
        SCOPED_TRACE(n_kv_heads);
        TinyShape shape;
        shape.n_kv_heads = n_kv_heads;
        const ComparedText text(shape, kPrompt, kDecode, 70u + static_cast<unsigned>(n_kv_heads));
        std::vector<Case> cases;
        const auto add = [&](const char* preset, int budget, const std::string& keys, auto change) {
            for (const Case& c : fair_cases(preset, budget, keys, change)) cases.push_back(c);
        };
        for (const char* preset : {"knorm", "random", "h2o", "tova", "a2sf", "sink", "window"}) {
            add(preset, 9, "", [](Policy&) {});
            add(preset, 14, ",every=3", [](Policy& p) { p.every = 3; });
            add(preset, 9, ",prefill=stepwise,every=1", [](Policy& p) {
                p.stepwise = true;
                p.every = 1;
            });
        }
        for (const char* preset : {"random", "tova"}) {
            add(preset, 11, ",buffer=3", [](Policy& p) { p.buffer = 3; });
            add(preset, 12, ",evict=decode", [](Policy& p) { p.phase = Phase::decode; });
        }
        for (const char* preset : {"knorm", "h2o"}) {
            add(preset, 100, "", [](Policy&) {});
            add(preset, 11, ",recent=4,sinks=2,scope=layer,pool=max", [](Policy& p) {
                p.recent = 4;
                p.sinks = 2;
                p.unit = Unit::layer;
                p.pool = PoolOver::max;
            });
            add(preset, 13, ",recent=2,protect=1..4", [](Policy& p) {
                p.recent = 2;
                p.protect_from = 1;
                p.protect_to = 4;
            });
        }
        text.expect_on_both(cases, of_all_kinds(1000));
    }
}

// SnapKV and R-KV vote with the newest rows of each span, which have equal parts of the window.
TEST(FieldSpans, WindowsAreDividedOverThem) {
    for (const auto& [n_kv_heads, n_kv_layers] : {std::pair{2, 0}, {1, 0}, {1, 1}}) {
        SCOPED_TRACE(fmt::format("{} KV heads in {} layers", n_kv_heads, n_kv_layers));
        TinyShape shape;
        shape.n_kv_heads = n_kv_heads;
        shape.n_kv_layers = n_kv_layers;
        const ComparedText text(shape, kPrompt, kDecode, 80u + static_cast<unsigned>(n_kv_heads));
        std::vector<Case> cases;
        const auto add = [&](const std::string& preset, int budget, int window, int recent,
                             const std::string& keys, auto change) {
            const std::string sizes = fmt::format(",window={},recent={}", window, recent);
            for (Case c : fair_cases(preset, budget, sizes + keys, change)) {
                c.policy.window = window;
                c.policy.recent = std::min(recent, budget);
                cases.push_back(c);
            }
        };
        const auto always = [](Policy& p) { p.phase = Phase::always; };
        add("snapkv", 12, 5, 5, "", [](Policy&) {});
        add("snapkv", 8, 32, 32, "", [](Policy&) {});
        add("snapkv", 10, 1, 2, "", [](Policy&) {});
        add("snapkv", 9, 6, 3, ",evict=always", always);
        add("snapkv", 12, 5, 5, ",evict=always,buffer=3,kernel=max:3", [&](Policy& p) {
            always(p);
            p.buffer = 3;
            p.kernel = 3;
            p.kernel_max = true;
        });
        add("snapkv", 11, 7, 4, ",prefill=stepwise,evict=always,scope=layer,pool=max", [&](Policy& p) {
            always(p);
            p.stepwise = true;
            p.unit = Unit::layer;
            p.pool = PoolOver::max;
        });
        add("snapkv", 14, 4, 2, ",evict=decode,every=3,sinks=1,protect=6..9", [](Policy& p) {
            p.phase = Phase::decode;
            p.every = 3;
            p.sinks = 1;
            p.protect_from = 6;
            p.protect_to = 9;
        });
        add("rkv", 12, 5, 3, ",buffer=2", [](Policy& p) { p.buffer = 2; });
        add("rkv", 10, 8, 4, ",buffer=0,kernel=avg:3,mix=0.5", [](Policy& p) {
            p.buffer = 0;
            p.kernel = 3;
            p.kernel_max = false;
            p.mix = 0.5;
        });
        text.expect_on_both(cases, of_all_kinds(200));
    }
}

std::unique_ptr<keyhole::Backend> backend_of(const std::shared_ptr<const keyhole::Model>& model,
                                             bool on_cuda) {
    return on_cuda ? cuda_backend(model)
                   : keyhole::make_backend(model, {keyhole::BackendChoice::cpu, 2, 0}, nullptr);
}

// They follow the text, so that KV heads of layers or groups together change nothing of them.
TEST(FieldSpans, FairOnesShareKvHeads) {
    TinyShape shape;
    shape.n_layers = 5;
    shape.n_kv_heads = 4;
    const ComparedText text(shape, kPrompt, kDecode, 91);
    std::vector<Case> cases;
    std::vector<Weights> shared;
    for (const Sharing& p : kSharings) shared.push_back(shared_weights(text.weights, p.m, p.g, p.released));
    for (std::size_t i = 0; i < kSharings.size(); ++i) {
        const Sharing& p = kSharings[i];
        const std::string kv = fmt::format(",kv={}{}", p.kv, p.released ? ",merge=released" : "");
        const auto add = [&](const char* preset, const std::string& keys, auto change) {
            for (Case c : fair_cases(preset, 11, keys + kv, change)) {
                c.weights = &shared[i];
                cases.push_back(c);
            }
        };
        for (const char* preset : {"h2o", "tova", "knorm", "sink"}) add(preset, "", [](Policy&) {});
        add("a2sf", ",scope=layer,pool=max", [](Policy& policy) {
            policy.unit = Unit::layer;
            policy.pool = PoolOver::max;
        });
        add("h2o", ",scope=shared,every=2", [](Policy& policy) {
            policy.unit = Unit::shared;
            policy.every = 2;
        });
        add("snapkv", ",window=5,recent=3,evict=always", [](Policy& policy) {
            policy.window = 5;
            policy.recent = 3;
            policy.phase = Phase::always;
        });
    }
    text.expect_on_both(cases, of_all_kinds(1000));
}

TEST(FieldSpans, FairOnesFollowChangesForksAndRewinds) {
    const ComparedText text({}, kPrompt, kDecode, 93);
    const auto fair = [](const char* preset, int budget, const TwinSpans& spans, const std::string& keys,
                         auto change) {
        Case c = preset_case(preset, budget, kDecode);
        c.spec += fmt::format(",spans=(fair {}){}", spans.text, keys);
        c.policy.spans = spans.of_reference;
        change(c.policy);
        return c;
    };
    const auto as_is = [](Policy&) {};
    const auto votes = [](int window) {
        return [window](Policy& p) {
            p.phase = Phase::always;
            p.window = window;
            p.recent = 3;
        };
    };
    const TwinSpans two = kSpans[1], three = {"a@0..9 b@10..19 c@20..", {{0, 9}, {10, 19}, {20, kOpen}}};
    const auto snapkv = [&](int budget, int window, const TwinSpans& spans) {
        return fair("snapkv", budget, spans, fmt::format(",window={},recent=3,evict=always", window),
                    votes(window));
    };
    const Case plain = preset_case("h2o", 11, kDecode);
    for (const bool on_cuda : {false, true}) {
        SCOPED_TRACE(on_cuda ? "cuda" : "cpu");
        const auto backend = backend_of(text.model, on_cuda);
        BothRuns runs(
            text, *backend,
            {fair("h2o", 14, two, "", as_is), snapkv(13, 8, two), fair("knorm", 12, three, "", as_is),
             fair("tova", 12, two, ",every=2", [](Policy& p) { p.every = 2; }), plain});
        runs.step(3);
        runs.change(0, fair("h2o", 10, three, "", as_is));
        runs.fork(1);
        runs.change(1, snapkv(9, 4, two));  // a shorter window: the newest rows of each span stay
        runs.step(2);
        runs.change(4, fair("h2o", 9, two, "", as_is));
        runs.change(2, fair("h2o", 8, three, "", as_is));
        runs.step(3);
        runs.rewind(kPrompt);
        runs.step(1);
        runs.change(0, plain);
        runs.change(3, fair("a2sf", 7, three, ",sinks=1", [](Policy& p) { p.sinks = 1; }));
        runs.fork(0);
        runs.step(6);
        runs.rewind(kPrompt + 4);
        runs.change(1, snapkv(8, 6, two));
        runs.change(5, fair("sink", 8, three, "", as_is));
        runs.step(kDecode - 5);
        EXPECT_GT(runs.n_gone, 400);
    }
}

// A span that begins where an older one does, or in it, has the rows of it that are its own.
TEST(FieldSpans, ClosedOnesKeepTheirRowsThroughAChange) {
    const ComparedText text({}, kPrompt, kDecode, 95);
    const auto snapkv = [](int budget, int window, const TwinSpans& spans) {
        Case c = preset_case("snapkv", budget, kDecode);
        if (!spans.text.empty()) c.spec += fmt::format(",spans=(fair {})", spans.text);
        c.spec += fmt::format(",window={},recent=3,evict=always", window);
        c.policy.spans = spans.of_reference;
        c.policy.phase = Phase::always;
        c.policy.window = window;
        c.policy.recent = 3;
        return c;
    };
    const TwinSpans none,
        two = {"a@0..9 b@10..", {{0, 9}, {10, kOpen}}},
        three = {"a@0..9 b@10..19 c@20..", {{0, 9}, {10, 19}, {20, kOpen}}},
        four = {"a@0..9 b@10..19 c@20..25 d@26..", {{0, 9}, {10, 19}, {20, 25}, {26, kOpen}}};
    for (const bool on_cuda : {false, true}) {
        SCOPED_TRACE(on_cuda ? "cuda" : "cpu");
        const auto backend = backend_of(text.model, on_cuda);
        BothRuns runs(
            text, *backend,
            {snapkv(18, 20, two), snapkv(18, 9, three), snapkv(17, 12, three), snapkv(19, 30, none)});
        runs.step(2);
        runs.change(0, snapkv(14, 6, three));  // of 10 rows of b, the newest are of c
        runs.change(3, snapkv(15, 4, two));    // a has two rows, of 30 that saw all
        runs.change(1, snapkv(14, 12, four));  // as many rows a span
        runs.change(2, snapkv(12, 8, four));
        runs.step(3);
        runs.fork(3);
        runs.step(kDecode - 5);
        EXPECT_GT(runs.n_gone, 100);
    }
}

// Nobody kept rows of a span that was over before `win` was named: its newest tokens stay.
TEST(FieldSpans, ClosedOnesWithoutRowsKeepTheirNewest) {
    Pair pair(TinyShape{}, kPrompt);
    pair.start({"full", "snapkv:budget=20,window=4,recent=2,evict=always,spans=(fair a@0..15 b@16..)"});
    pair.step(2);
    const std::string of_two = "snapkv:budget=12,window=4,recent=2,evict=always,spans=(fair ";
    pair.apply(0, of_two + "a@0..15 b@16..)");
    pair.apply(1, of_two + "a@0..11 b@12..17 c@18..)");  // a ends in an older a; b begins in it, ends later
    pair.step(4);
    for (int g = 0; g < pair.model->layout().n_kv_heads(); ++g) {
        const auto of_span = [&](std::size_t lane, int first, int last) {
            std::vector<std::int32_t> stored = pair.lanes[lane].cuda->stored_positions(g);
            std::erase_if(stored, [&](std::int32_t p) { return p < first || p > last; });
            return stored;
        };
        const std::vector<std::int32_t> a = of_span(0, 0, 15), b = of_span(1, 12, 17);
        ASSERT_GT(a.size(), 2u);
        EXPECT_EQ(a.front(), 16 - std::ssize(a)) << "KV head " << g;
        ASSERT_GT(b.size(), 1u);
        EXPECT_EQ(b.back(), 17);
    }
}

}  // namespace
}  // namespace reference::test_fair_spans
