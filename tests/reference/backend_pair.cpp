#include "tests/reference/backend_pair.h"

#include "engine/base/half.h"
#include "engine/base/index.h"
#include "engine/device/make_backend.h"
#include "engine/model/kv_sharing.h"
#include "engine/trace/record.h"
#include "tests/reference/executor_under_test.h"
#include "tests/reference/session_run.h"
#include "tests/reference/sharing_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

namespace reference {

using keyhole::LaneStep;
using keyhole::ResolvedPolicy;
using keyhole::RowOutput;

std::unique_ptr<keyhole::Backend> cuda_backend(const std::shared_ptr<const keyhole::Model>& model,
                                               unsigned shuffle,
                                               const keyhole::cuda::ProductOptions& products) {
    std::string reason;
    return keyhole::make_cuda_backend(model, executor_under_test(shuffle, reason), products);
}

void expect_block_of(const RowOutput& out) {
    ASSERT_NE(out.block, nullptr);
    const keyhole::RowBlock& block = *out.block;
    EXPECT_EQ(block.offset, out.values.offset);
    EXPECT_EQ(block.head_offset, out.values.head_offset);
    const auto same_bits = [](const auto& x, const auto& y) {
        return x.size() == y.size() &&
               (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(x[0])) == 0);
    };
    std::vector<std::uint16_t> narrow(out.values.attention.size());
    keyhole::fp16_from_floats(out.values.attention, narrow);
    EXPECT_TRUE(same_bits(block.attention, narrow));
    EXPECT_TRUE(same_bits(block.scores, out.values.scores));
    EXPECT_TRUE(same_bits(block.threshold, out.values.threshold));
}

void CudaBackend::SetUp() {
    std::string reason;
    if (executor_under_test(1, reason) == nullptr) GTEST_SKIP() << reason;
}

ResolvedPolicy policy_of(const std::string& spec, const keyhole::Model& model, int n_prompt) {
    return keyhole::resolve(keyhole::parse_lane_spec(spec).policy, n_prompt, 20,
                            keyhole::head_grid(model.layout()));
}

void expect_lanes_stand_alone(const std::shared_ptr<const keyhole::Model>& model,
                              const std::vector<std::string>& specs) {
    for (const unsigned shuffle : {1u, 77u}) {
        SCOPED_TRACE(fmt::format("threads in order {}", shuffle));
        const auto alone = cuda_backend(model), together = cuda_backend(model, shuffle);
        expect_lanes_stand_alone(specs, [&](auto some, auto prompt, auto decode) {
            return run_backend(some.size() > 1 ? *together : *alone, model, some, prompt, decode);
        });
    }
}

int graphs_of(const std::shared_ptr<const keyhole::Model>& model, const std::vector<std::string>& specs) {
    std::string reason;
    const std::shared_ptr<keyhole::cuda::Executor> executor = executor_under_test(1, reason);
    const auto backend = keyhole::make_cuda_backend(model, executor);
    const std::vector<int> tokens = random_tokens(60, 5);
    const std::span<const int> all(tokens);
    run_backend(*backend, model, specs, all.first(30), all.subspan(30));
    return static_cast<int>(executor->counts().new_graphs);
}

void expect_sessions_follow_the_cpu(const std::shared_ptr<const keyhole::Model>& model,
                                    const keyhole::RunSpec& spec, const std::vector<std::string>& script) {
    LastRows rows[3];
    for (const int run : {0, 1, 2}) {  // CPU; CUDA with checkpoints; CUDA from the prompt
        const auto backend = run == 0
                                 ? keyhole::make_backend(model, {keyhole::BackendChoice::cpu, 2, 0}, nullptr)
                                 : cuda_backend(model);
        keyhole::Session session(model, *backend, spec, &rows[run], run == 2 ? 0 : std::size_t{64} << 20);
        session.prefill();
        for (const std::string& line : script)
            if (line.starts_with("step "))
                for (int i = 0; i < std::stoi(line.substr(5)); ++i) session.step();
            else
                session.apply(keyhole::parse_command(line));
        if (run != 1) continue;
        KeepRows again;
        keyhole::replay(model, *backend, session.run_spec(), 1000, &again, [](const auto&) {});
        int n_same = 0;
        for (const auto& [at, kept] : again.rows) {  // runs on to the end
            const auto live = rows[1].rows.find(at);
            if (live == rows[1].rows.end()) continue;
            EXPECT_EQ(kept, live->second) << "row " << at.first << " of lane " << at.second;
            ++n_same;
        }
        EXPECT_GT(n_same, 50);
    }
    for (const int run : {1, 2}) {
        ASSERT_EQ(rows[0].rows.size(), rows[run].rows.size());
        for (const auto& [at, a] : rows[0].rows) {
            const KeepRows::Kept& b = rows[run].rows.at(at);
            SCOPED_TRACE(fmt::format("run {}, row {}, lane {}", run, at.first, at.second));
            ASSERT_EQ(a.token, b.token);
            ASSERT_EQ(a.evictions, b.evictions);
            for (std::size_t v = 0; v < a.next_logits.size(); ++v)
                ASSERT_NEAR(a.next_logits[v], b.next_logits[v], 2e-3);
        }
    }
    for (const auto& [at, a] : rows[1].rows)
        EXPECT_EQ(a.next_logits, rows[2].rows.at(at).next_logits) << at.first;
}

Pair::Pair(const TinyShape& shape, int n_prompt)
    : Pair(keyhole::load_model(TinyModel(shape).folder()), n_prompt, shape.seed) {}

Pair::Pair(std::shared_ptr<const keyhole::Model> of, int n_prompt, std::uint64_t seed,
           const keyhole::cuda::ProductOptions& products)
    : model(std::move(of)), n_prompt_(n_prompt) {
    cpu = keyhole::make_backend(model, {keyhole::BackendChoice::cpu, 2, 0}, nullptr);
    cuda = cuda_backend(model, 1, products);
    tokens_ = random_tokens(n_prompt + 400, seed + 7);
    for (int& token : tokens_) token %= model->config().n_vocab;
    next_ = n_prompt;
}

void Pair::start(const std::vector<std::string>& specs) {
    for (const std::string& spec : specs) {
        const auto of = keyhole::shared_model(model, keyhole::parse_lane_spec(spec).sharing);
        const auto variant = of != model ? of : nullptr;
        policies.push_back(policy_of(spec, *of, n_prompt_));
        lanes.push_back({of,
                         cpu->make_cache(policies.back(), variant),
                         cuda->make_cache(policies.back(), variant),
                         {},
                         {}});
    }
    std::set<const keyhole::Model*> of_lanes;
    for (const Twin& lane : lanes)
        if (of_lanes.insert(lane.model.get()).second) prefill_lanes_of(lane.model.get());
    compare("prompt");
}

/// A prompt pass covers the lanes of one model.
void Pair::prefill_lanes_of(const keyhole::Model* one) {
    std::vector<keyhole::LanePrefill> a, b;
    for (std::size_t n = 0; n < lanes.size(); ++n) {
        if (lanes[n].model.get() != one) continue;
        a.push_back({lanes[n].cpu.get(), kAllOfARow, &lanes[n].cpu_out});
        b.push_back({lanes[n].cuda.get(), kAllOfARow, &lanes[n].cuda_out});
    }
    const std::span<const int> prompt = std::span<const int>(tokens_).first(keyhole::to_index(n_prompt_));
    cpu->prefill(prompt, a, nullptr, {});
    cuda->prefill(prompt, b, nullptr, {});
}

void Pair::step(int n_rows) {
    for (int i = 0; i < n_rows && !::testing::Test::HasFatalFailure(); ++i, ++next_) {
        std::vector<LaneStep> a, b;
        for (std::size_t n = 0; n < lanes.size(); ++n) {
            const int token = tokens_[keyhole::to_index(next_)];
            a.push_back({lanes[n].cpu.get(), token, next_, kAllOfARow, &lanes[n].cpu_out});
            b.push_back({lanes[n].cuda.get(), token, next_, kAllOfARow, &lanes[n].cuda_out});
        }
        cpu->step(a);
        cuda->step(b);
        cuda->finish_rows();
        compare(fmt::format("row {}", next_));
    }
}

void Pair::apply(std::size_t lane, const std::string& spec) {
    policies[lane] = policy_of(spec, *lanes[lane].model, n_prompt_);
    EXPECT_EQ(cpu->apply_policy(*lanes[lane].cpu, policies[lane], next_ - 1),
              cuda->apply_policy(*lanes[lane].cuda, policies[lane], next_ - 1))
        << spec;
}

void Pair::evict(std::size_t lane, int g, int position) {
    EXPECT_EQ(lanes[lane].cpu->evict(g, position), lanes[lane].cuda->evict(g, position));
}
void Pair::pin(std::size_t lane, int g, int position, bool pinned) {
    EXPECT_EQ(lanes[lane].cpu->set_pinned(g, position, pinned),
              lanes[lane].cuda->set_pinned(g, position, pinned));
}

void Pair::compare(const std::string& where) {
    for (std::size_t n = 0; n < lanes.size(); ++n) {
        SCOPED_TRACE(fmt::format("lane {}, {}", n, where));
        const RowOutput &a = lanes[n].cpu_out, &b = lanes[n].cuda_out;
        ASSERT_EQ(a.evictions, b.evictions);
        ASSERT_EQ(a.values.offset, b.values.offset);
        ASSERT_EQ(a.values.positions, b.values.positions);
        ASSERT_EQ(a.values.head_offset, b.values.head_offset);
        ASSERT_EQ(a.values.hidden, b.values.hidden);
        near("next logits", a.next_logits, b.next_logits);
        near("attention", a.values.attention, b.values.attention);
        near("logits", a.values.logits, b.values.logits);
        near("noise", a.values.noise, b.values.noise);
        near("scores", a.values.scores, b.values.scores);
        near("shadow", a.values.shadow, b.values.shadow);
        near("retained mass", a.shadow.retained_mass, b.shadow.retained_mass);
        near("ideal cosine", a.shadow.cosine_ideal, b.shadow.cosine_ideal);
        near("full cosine", a.shadow.cosine_full, b.shadow.cosine_full);
        near("output similarity", a.shadow.output_similarity, b.shadow.output_similarity);
        near("threshold", a.values.threshold, b.values.threshold);
        near("q", a.inputs.q, b.inputs.q);
        near("q before rotation", a.inputs.raw_q, b.inputs.raw_q);
        near("k", a.inputs.k, b.inputs.k);
        near("k before rotation", a.inputs.raw_k, b.inputs.raw_k);
        near("v", a.inputs.v, b.inputs.v);
        for (const RowOutput* out : {&a, &b}) expect_block_of(*out);
        for (int g = 0; g < lanes[n].model->layout().n_kv_heads(); ++g) {
            ASSERT_EQ(lanes[n].cpu->stored_positions(g), lanes[n].cuda->stored_positions(g));
            ASSERT_EQ(lanes[n].cpu->pinned_positions(g), lanes[n].cuda->pinned_positions(g));
        }
        ASSERT_EQ(lanes[n].cpu->use().stored_tokens, lanes[n].cuda->use().stored_tokens);
    }
}

void Pair::fork(std::size_t lane) {
    Twin& from = lanes[lane];
    Twin fork{from.model, from.cpu->clone(), from.cuda->clone(), {}, {}};
    lanes.push_back(std::move(fork));
    policies.push_back(ResolvedPolicy(policies[lane]));
}

void Pair::near(const char* what, const std::vector<float>& a, const std::vector<float>& b) const {
    ASSERT_EQ(a.size(), b.size()) << what;
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;  // infinity too
        ASSERT_NEAR(a[i], b[i], tolerance * std::max(1.0f, std::abs(a[i]))) << what << " " << i;
    }
}

}  // namespace reference
