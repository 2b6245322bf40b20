#include "app/state/shadow_job.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/run/prompt.h"
#include "engine/session/session.h"

#include <algorithm>
#include <limits>

namespace keyhole {

ShadowPicker::ShadowPicker(KvLayout of_run, ShadowAttention about)
    : of_run_(std::move(of_run)), result_(std::move(about)) {
    result_.by_row.assign(to_index(result_.last_row) + 1, std::numeric_limits<float>::quiet_NaN());
}

void ShadowPicker::row(const StepTrace& step, int lane, const RowOutput& out) {
    const LaneInfo& info = *step.lanes[to_index(lane)].info;
    const RowValues& values = out.values;
    if (info.id != result_.lane_id || step.row > result_.last_row || step.row < result_.position ||
        values.shadow.empty() || values.positions.empty())
        return;
    const KvLayout& layout = info.layout != nullptr ? *info.layout : of_run_;
    double sum = 0;
    int n = 0;
    for (int l = 0; l < layout.n_layers(); ++l)
        for (int h = 0; h < layout.n_heads(); ++h) {
            const auto g = to_index(layout.kv_head_from_head(l, h));
            const auto begin = values.positions.begin() + values.offset[g],
                       end = values.positions.begin() + values.offset[g + 1];
            if (std::find(begin, end, result_.position) != end) continue;  // still kept
            const auto head = to_index(l * layout.n_heads() + h);
            sum += double(values.shadow[head * to_index(step.row + 1) + to_index(result_.position)]);
            ++n;
        }
    if (n > 0) result_.by_row[to_index(step.row)] = static_cast<float>(sum / n);
}

void ShadowPicker::rewind(int row) {
    std::fill(result_.by_row.begin() + std::min<std::ptrdiff_t>(row + 1, std::ssize(result_.by_row)),
              result_.by_row.end(), std::numeric_limits<float>::quiet_NaN());
}

void ShadowJob::start(std::shared_ptr<const Model> model, RunSpec run, JobBackend of_job,
                      ShadowAttention about, std::function<void()> wake) {
    run.requested = {};
    run.requested.shadow = true;
    run.requested.attention = true;  // it includes the kept positions
    job_.begin(
        [model = std::move(model), run = std::move(run), of_job = std::move(of_job),
         about = std::move(about)](const BackgroundJob<ShadowAttention>::Progress& progress) {
            const std::shared_ptr<Backend> backend = of_job.get(model);
            ShadowPicker picker(model->layout(), about);
            const double n_rows = about.last_row + 1,
                         n_prompt = static_cast<double>(prompt_tokens(*model, run).size());
            replay(
                model, *backend, run, about.last_row, &picker,
                [&](const std::shared_ptr<const StepTrace>& step) {
                    if (!progress((step->row + 1) / n_rows))
                        fail(ErrorCode::cancelled, "stopped: nothing was computed");
                },
                [&](double done) { return progress(done * n_prompt / n_rows); });
            return picker.result();
        },
        std::move(wake));
}

}  // namespace keyhole
