#include "engine/trace/row_bytes.h"

namespace keyhole {

namespace {

std::size_t bytes_of(const ShadowRow& shadow) {
    return (shadow.retained_mass.size() + shadow.cosine_ideal.size() + shadow.cosine_full.size() +
            shadow.output_similarity.size()) *
           sizeof(float);
}

}  // namespace

std::size_t row_bytes(const StepTrace& step) {
    std::size_t sum = 0;
    for (const LaneRecord& lane : step.lanes)
        sum += (lane.rows ? lane.rows->bytes() : 0) + (lane.shadow ? bytes_of(*lane.shadow) : 0);
    return sum;
}

std::shared_ptr<const StepTrace> without_rows(const StepTrace& step) {
    auto copy = std::make_shared<StepTrace>(step);
    for (LaneRecord& lane : copy->lanes) {
        lane.rows.reset();
        lane.shadow.reset();
    }
    return copy;
}

}  // namespace keyhole
