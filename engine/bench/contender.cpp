#include "engine/bench/contender.h"

#include "engine/base/error.h"
#include "engine/base/philox.h"
#include "engine/model/digest.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

namespace keyhole {
namespace {

double wall_ms(const std::function<void()>& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Contender::Contender(const Model& model, Backend& backend, ContenderSetup setup)
    : clock(wall_ms),
      backend_(backend),
      setup_(std::move(setup)),
      layout_(model.layout()),
      head_dim_(model.config().head_dim),
      n_vocab_(model.config().n_vocab),
      row_(setup_.context),
      n_learned_(model.config().positions == PositionKind::learned ? model.config().n_ctx : 0),
      outputs_(setup_.policies.size()) {
    check_positions(setup_.context);
    std::vector<int> prompt;
    for (int i = 0; i < setup_.context; ++i) prompt.push_back(token(i, 0));
    std::vector<LanePrefill> lanes;
    for (std::size_t i = 0; i < setup_.policies.size(); ++i) {
        if (setup_.follows != nullptr) {
            if (setup_.policies[i].exceeded(setup_.context, setup_.context - 1))
                fail(ErrorCode::wrong_use,
                     "--scores: lane '{}' evicts after the prompt of {} tokens; give it budget={} or more",
                     setup_.follows->setup().name, setup_.context, setup_.context);
            setup_.policies[i].makes_scores = false;
            setup_.policies[i].stored = ResolvedPolicy::kUnlimited;
        }
        caches_.push_back(backend.make_cache(setup_.policies[i]));
        lanes.push_back({caches_.back().get(), {}, &outputs_[i]});
    }
    prompt_ms = wall_ms([&] { backend.prefill(prompt, lanes, nullptr, {}); });
}

void Contender::check_positions(int end) const {
    if (n_learned_ == 0) return;
    if (end > n_learned_)
        fail(ErrorCode::wrong_use,
             "the model has learned {} positions, and '{}' goes beyond; take a smaller --context", n_learned_,
             setup_.name);
    for (const ResolvedPolicy& policy : setup_.policies)
        if (policy.positions != Positions::original)
            fail(ErrorCode::wrong_use,
                 "'{}' moves keys, whose positions this model has learned; leave positions=original",
                 setup_.name);
}

/// Returns a random token: a step reads the same bytes for any text.
int Contender::token(int row, int lane) const {
    const auto drawn =
        philox4x32_10({{static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(lane), 0, 0}}, 1);
    return static_cast<int>(drawn.x[0] % static_cast<std::uint32_t>(n_vocab_));
}

void Contender::decode(int n_steps) {
    check_positions(row_ + n_steps);
    std::vector<LaneStep> steps(caches_.size());
    for (int i = 0; i < n_steps; ++i, ++row_) {
        for (std::size_t n = 0; n < caches_.size(); ++n)
            steps[n] = {caches_[n].get(), token(row_, static_cast<int>(n)), row_, setup_.requested,
                        &outputs_[n]};
        step_ms.push_back(clock([&] {
            backend_.step(steps);
            backend_.finish_rows();
        }));
        if (!setup_.keeps && setup_.follows == nullptr) continue;
        gone_.emplace_back();
        for (std::size_t n = 0; n < caches_.size(); ++n) {
            gone_.back().push_back(outputs_[n].evictions);
            digests_.push_back(
                digest_bytes(kDigestSeed, std::as_bytes(std::span<const float>(outputs_[n].next_logits))));
            if (setup_.follows == nullptr) continue;
            for (const Eviction& e : setup_.follows->gone_.at(gone_.size() - 1)[n])
                caches_[n]->evict(e.kv_head, e.position);
        }
    }
}

std::int64_t Contender::read_bytes() const {
    std::int64_t bytes = 0;
    for (const auto& cache : caches_) {
        const CacheUse use = cache->use();
        bytes += use.stored_bytes;
        if (!cache->policy().any_reads_pages() || use.stored_tokens == 0) continue;
        const std::int64_t of_token = use.stored_bytes / use.stored_tokens;  // in one KV head
        for (int g = 0; g < layout_.n_kv_heads(); ++g) {
            const std::vector<HeadRef>& readers = layout_.kv_head(g).readers;
            const ResolvedPolicy& own = cache->policy().at(readers.front().layer, readers.front().head);
            if (!own.reads_pages()) continue;
            const auto n = static_cast<std::int64_t>(cache->stored_positions(g).size());
            const std::int64_t chosen = std::ssize(readers) * own.n_pages_read() * own.page;
            const std::int64_t n_pages = (n + own.page - 1) / own.page;
            if (n_pages <= own.n_pages_read()) continue;  // all are read
            bytes -= std::max<std::int64_t>(n - chosen, 0) * of_token;
            bytes += n_pages * 2 * head_dim_ * std::int64_t{sizeof(float)};
        }
    }
    return bytes;
}

std::int64_t Contender::allocated_bytes() const {
    std::int64_t bytes = 0;
    for (const auto& cache : caches_) bytes += cache->use().allocated_bytes;
    return bytes;
}

}  // namespace keyhole
