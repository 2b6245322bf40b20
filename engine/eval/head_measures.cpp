#include "engine/eval/head_measures.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/eval/measured_run.h"
#include "engine/policy/attention.h"

#include <algorithm>

namespace keyhole {

namespace {

void add_to(double& sum, double value) {
    sum = std::isnan(sum) ? value : sum + value;
}

bool is_in(const AnswerPlace& place, int position) {
    return position >= place.first && position <= place.last;
}

/// Adds the rows after the prompt as they come.
class HeadSink : public RowSink {
  public:
    /// first_row: rows before it are not counted.
    HeadSink(const AnswerPlace& place, int first_row, std::span<const KvLayout> layouts,
             std::span<LaneHeads> heads)
        : place_(place), first_row_(first_row), layouts_(layouts), heads_(heads) {}

    void row(const StepTrace& step, int lane, const RowOutput& out) override {
        if (step.row < first_row_ || out.shadow.retained_mass.empty()) return;  // nothing was evicted yet
        const KvLayout& layout = layouts_[to_index(lane)];
        LaneHeads& of_lane = heads_[to_index(lane)];
        const ResolvedPolicy& policy = step.lanes[to_index(lane)].info->policy;
        ++of_lane.n_rows;
        of_lane.n_placed_rows += place_ ? 1 : 0;
        for (int layer = 0; layer < layout.n_layers(); ++layer)
            for (int h = 0; h < layout.n_heads(); ++h) {
                const std::size_t i = to_index(layer * layout.n_heads() + h);
                HeadMeasures& head = of_lane.heads[i];
                head.lost += 1 - static_cast<double>(out.shadow.retained_mass[i]);
                head.output_error += 1 - static_cast<double>(out.shadow.output_similarity[i]);
                add_attention(out.values, layout.kv_head_from_head(layer, h), i, step.row,
                              policy.at(layer, h).budget, head);
            }
    }

  private:
    void add_attention(const RowValues& values, int g, std::size_t i, int row, int budget,
                       HeadMeasures& head) {
        const auto begin = to_index(values.offset[to_index(g)]),
                   end = to_index(values.offset[to_index(g) + 1]);
        const std::span<const float> full(values.shadow.data() + i * to_index(row + 1), to_index(row + 1));
        ideal_set(full, budget, ideal_);
        std::size_t n_found = 0, at = 0;
        double attention = 0, full_attention = 0;
        for (std::size_t k = begin; k < end; ++k) {
            if (!values.hidden.empty() && values.hidden[k] != 0) continue;
            const std::int32_t position = values.positions[k];
            while (at < ideal_.size() && ideal_[at] < position) ++at;
            n_found += at < ideal_.size() && ideal_[at] == position ? 1 : 0;
            if (is_in(place_, position))
                attention +=
                    static_cast<double>(values.attention[to_index(values.head_offset[i]) + k - begin]);
        }
        head.recall += static_cast<double>(n_found) / static_cast<double>(ideal_.size());
        if (!place_) return;
        for (int p = place_.first; p <= std::min(place_.last, row); ++p)
            full_attention += static_cast<double>(full[to_index(p)]);
        add_to(head.attention, attention);
        add_to(head.full_attention, full_attention);
    }

    const AnswerPlace& place_;
    int first_row_;
    std::span<const KvLayout> layouts_;
    std::span<LaneHeads> heads_;
    std::vector<std::int32_t> ideal_;
};

/// Adds the share of the answer's tokens that each KV head holds after the prompt, to all that read it.
void add_held(const AnswerPlace& place, const KvLayout& layout, std::span<const Eviction> evictions,
              LaneHeads& heads) {
    std::vector<int> n_gone(to_index(layout.n_kv_heads()), 0);
    for (const Eviction& gone : evictions)
        n_gone[to_index(gone.kv_head)] += is_in(place, gone.position) ? 1 : 0;
    ++heads.n_placed;
    for (int layer = 0; layer < layout.n_layers(); ++layer)
        for (int h = 0; h < layout.n_heads(); ++h)
            add_to(heads.heads[to_index(layer * layout.n_heads() + h)].held,
                   1 - n_gone[to_index(layout.kv_head_from_head(layer, h))] /
                           static_cast<double>(place.last - place.first + 1));
}

}  // namespace

void check_heads_of(const QuestionSet& set) {
    if (!set.in_own_words && set.measures.empty()) return;
    fail(ErrorCode::wrong_use,
         "--by head: heads are measured while a known answer is read; give --task NAME or --text FILE, or "
         "data with `target`");
}

void add_heads(const std::shared_ptr<const Model>& model, Backend& backend, std::span<const LaneSpec> lanes,
               const Question& question, std::span<LaneHeads> heads) {
    KH_ASSERT(!question.answer);  // see check_heads_of()
    const RunSpec spec = measured_run(question, lanes);
    const std::vector<KvLayout> layouts = layouts_of(*model, spec.lanes);
    for (std::size_t i = 0; i < lanes.size(); ++i)
        heads[i].heads.resize(to_index(layouts[i].n_layers() * layouts[i].n_heads()));
    // A text that is read token by token counts as a prompt.
    const auto n_prompt = static_cast<int>(question.prompt.size());
    const std::size_t n_text = question.place.last < n_prompt ? 0 : question.asked.size();
    HeadSink sink(question.place, n_prompt + static_cast<int>(n_text), layouts, heads);
    decode_measured(model, backend, spec, sink, n_text, [&](std::size_t i, std::span<const Eviction> gone) {
        if (question.place) add_held(question.place, layouts[i], gone, heads[i]);
    });
}

void make_means(LaneHeads& heads) {
    KH_ASSERT(heads.n_rows > 0);
    for (HeadMeasures& head : heads.heads) {
        head.held /= heads.n_placed;
        head.attention /= heads.n_placed_rows;
        head.full_attention /= heads.n_placed_rows;
        head.lost /= heads.n_rows;
        head.recall /= heads.n_rows;
        head.output_error /= heads.n_rows;
    }
}

}  // namespace keyhole
