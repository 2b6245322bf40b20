#include "engine/eval/span_measures.h"

#include "engine/base/index.h"
#include "engine/eval/measured_run.h"

#include <algorithm>

namespace keyhole {

namespace {

SpanMeasures& span_named(LaneSpans& lane, const std::string& name) {
    const auto at = std::ranges::find(lane.spans, name, &SpanMeasures::name);
    return at != lane.spans.end() ? *at : lane.spans.emplace_back(SpanMeasures{name});
}

/// Adds the attention of the rows after the prompt as they come.
class SpanSink : public RowSink {
  public:
    /// first_row: rows before it are not counted.
    SpanSink(std::span<const TextSpan> spans, int first_row, std::span<const KvLayout> layouts,
             std::span<LaneSpans> of_lanes)
        : spans_(spans), first_row_(first_row), layouts_(layouts), of_lanes_(of_lanes) {}

    void row(const StepTrace& step, int lane, const RowOutput& out) override {
        if (step.row < first_row_ || out.values.shadow.empty()) return;
        const KvLayout& layout = layouts_[to_index(lane)];
        const int n_all = layout.n_layers() * layout.n_heads();
        for (const TextSpan& span : spans_) {
            double full = 0, seen = 0;
            for (int layer = 0; layer < layout.n_layers(); ++layer)
                for (int head = 0; head < layout.n_heads(); ++head)
                    add_head(out.values, span.place, layout.kv_head_from_head(layer, head),
                             layer * layout.n_heads() + head, step.row, full, seen);
            SpanMeasures& sum = span_named(of_lanes_[to_index(lane)], span.name);
            sum.full_attention += full / n_all;
            sum.lost += (full - seen) / n_all;
            ++sum.n_rows;
        }
    }

  private:
    /// Adds a head's full attention to the place, and the part of it that goes to tokens that the lane reads.
    static void add_head(const RowValues& values, const AnswerPlace& place, int kv_head, int head, int row,
                         double& full, double& seen) {
        const float* of_head = values.shadow.data() + to_index(head) * to_index(row + 1);
        for (int p = place.first; p <= std::min(place.last, row); ++p)
            full += static_cast<double>(of_head[p]);
        const auto begin = to_index(values.offset[to_index(kv_head)]),
                   end = to_index(values.offset[to_index(kv_head) + 1]);
        for (std::size_t k = begin; k < end; ++k) {
            const std::int32_t p = values.positions[k];
            if (p < place.first || p > place.last || (!values.hidden.empty() && values.hidden[k] != 0))
                continue;
            seen += static_cast<double>(of_head[p]);
        }
    }

    std::span<const TextSpan> spans_;
    int first_row_;
    std::span<const KvLayout> layouts_;
    std::span<LaneSpans> of_lanes_;
};

}  // namespace

void add_spans(const std::shared_ptr<const Model>& model, Backend& backend, std::span<const LaneSpec> lanes,
               const Question& question, std::span<LaneSpans> of_lanes) {
    const RunSpec spec = measured_run(question, lanes);
    const std::vector<KvLayout> layouts = layouts_of(*model, spec.lanes);
    const std::size_t n_asked = question.asked.size();
    SpanSink sink(question.spans, static_cast<int>(question.prompt.size() + n_asked), layouts, of_lanes);
    const auto add_held = [&](std::size_t i, std::span<const Eviction> gone) {
        for (const TextSpan& span : question.spans) {
            SpanMeasures& sum = span_named(of_lanes[i], span.name);
            sum.held += held_share(span.place, gone, layouts[i].n_kv_heads());
            sum.n_tokens += span.place.last - span.place.first + 1;
            ++sum.n_questions;
        }
    };
    decode_measured(model, backend, spec, sink, n_asked, add_held);
}

void make_means(LaneSpans& lane) {
    for (SpanMeasures& span : lane.spans) {
        if (span.n_questions > 0) {
            span.held /= span.n_questions;
            span.n_tokens /= span.n_questions;
        }
        if (span.n_rows > 0) {
            span.full_attention /= span.n_rows;
            span.lost /= span.n_rows;
        }
    }
}

}  // namespace keyhole
