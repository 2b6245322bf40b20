#include "engine/session/answer_choice.h"

#include "engine/base/index.h"

#include <algorithm>

namespace keyhole {

std::size_t n_given_tokens(const RunContext& context, const LaneState& lane) {
    const int turn_end = lane.reading.turn_end;
    const std::size_t n =
        turn_end >= 0 ? to_index(turn_end + 1 - context.n_prompt()) : context.start.forced.size();
    return std::min(n, lane.tokens.size());
}

LaneAnswer answer_with_choice(const RunContext& context, const AnswerEnd& end, const Lane& lane,
                              std::vector<int> tokens, int row) {
    const ModelConfig& config = context.run->config;
    const bool at_last_position = config.positions == PositionKind::learned && row + 1 >= config.n_ctx;
    const bool ended = !context.start.ignore_eos &&
                       std::find(config.eos.begin(), config.eos.end(), lane.predicted) != config.eos.end();
    if (!ended && lane.failure.empty()) tokens.push_back(lane.predicted);
    LaneAnswer answer = answer_from(context.model->tokenizer(), tokens, end);
    answer.lane_id = lane.id;
    answer.failure = lane.failure;
    const bool cut = std::ssize(tokens) >= end.max_tokens || at_last_position;
    answer.cut = !answer.complete && !ended && cut;
    answer.complete = answer.complete || ended || cut || !lane.failure.empty();
    return answer;
}

}  // namespace keyhole
