#include "engine/session/forced_text.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/run/prompt.h"

#include <algorithm>
#include <string>

namespace keyhole {

namespace {

/// Returns the row that a lane processed last.
int last_row(const RunContext& context, const LaneState& lane) {
    return context.n_prompt() + static_cast<int>(lane.tokens.size()) - 1;
}

/// Returns whether the lane has chosen its end token in the current row. Forced tokens are no answer.
bool answer_ended(const RunContext& context, const LaneState& lane, int row) {
    const std::vector<int>& eos = context.model->config().eos;
    return lane.failure.empty() && !lane.tokens.empty() && lane.reading.forced.empty() &&
           last_row(context, lane) == row && std::find(eos.begin(), eos.end(), lane.token) != eos.end();
}

/// Visits the lanes, then the removed ones that may come back.
template <class Visit>
void for_all_lanes(SessionState& state, Visit visit) {
    for (Lane& lane : state.lanes) visit(lane);
    for (RemovedLane& lane : state.removed) visit(lane.past);
}

/// Queues tokens for one lane, which continues if its text ended with the current row.
void force(const RunContext& context, LaneState& lane, int row, const std::vector<int>& tokens,
           bool instead) {
    ReadingState& reading = lane.reading;
    if (instead && reading.turn_end > row) reading.turn_end = -1;  // the rest of the turn is dropped
    const ForceTokens more{tokens, instead};
    reading.queue(more);
    lane.log.push_back({row, more});
    if (lane.ended && last_row(context, lane) == row) lane.ended = false;
}

/// Makes the tokens of a turn for each lane: with the end token where the lane has not written it.
class Turn {
  public:
    Turn(const RunContext& context, const std::string& text) : context_(context), text_(text) {
        if (context.start.chat) chat_ = chat_template_of(*context.model);
    }

    /// reader: the lane whose text decides.
    void say(LaneState& lane, const LaneState& reader, int row, bool instead) {
        if (!lane.failure.empty() || last_row(context_, lane) != row) return;
        force(context_, lane, row, tokens(has_ended(reader, instead)), instead);
        if (!lane.reading.forced.empty())
            lane.reading.turn_end = row + static_cast<int>(lane.reading.forced.size());
    }

  private:
    /// Returns whether what the lane will have read before the turn ends with the template's end token.
    bool has_ended(const LaneState& lane, bool instead) const {
        const std::vector<int>& waiting = lane.reading.forced;
        if (lane.tokens.empty() && (waiting.empty() || instead)) return false;
        const int last = waiting.empty() || instead ? lane.token : waiting.back();
        return ends_answer(chat_, context_.run->token_bytes[to_index(last)]);
    }
    const std::vector<int>& tokens(bool answer_ended) {
        std::vector<int>& known = tokens_[answer_ended ? 1 : 0];
        if (known.empty())
            known = context_.model->tokenizer().encode(
                context_.start.chat ? next_turn(chat_, text_, answer_ended) : text_, false);
        return known;
    }

    const RunContext& context_;
    const std::string& text_;
    ChatTemplate chat_;
    std::vector<int> tokens_[2];
};

void say_now(const RunContext& context, SessionState& state, const std::string& text, bool instead) {
    if (context.model->config().positions == PositionKind::learned)
        check_length(*context.model, text, "the text to say");
    Turn turn(context, text);
    // Lane 0 is the last: the others may read as it does.
    for_all_lanes(state, [&](LaneState& lane) {
        if (&lane != &state.lanes.front())
            turn.say(lane, state.follow ? state.lanes.front() : lane, state.row, instead);
    });
    turn.say(state.lanes.front(), state.lanes.front(), state.row, instead);
}

}  // namespace

void force_tokens(const RunContext& context, SessionState& state, const std::vector<int>& tokens,
                  bool instead) {
    const int n_vocab = context.model->config().n_vocab;
    for (const int token : tokens)
        if (token < 0 || token >= n_vocab)
            fail(ErrorCode::wrong_use, "there is no token {}; the model has 0 to {}", token, n_vocab - 1);
    for_all_lanes(state, [&](LaneState& lane) { force(context, lane, state.row, tokens, instead); });
}

void say_text(const RunContext& context, SessionState& state, const SayText& say) {
    if (!say.after) return say_now(context, state, say.text, say.instead);
    state.to_say.push_back(say.text);
    say_what_waits(context, state);
}

void say_what_waits(const RunContext& context, SessionState& state) {
    const int n_turns = static_cast<int>(state.to_say.size());
    Lane& reference = state.lanes.front();
    const auto can_hear = [&](const LaneState& lane) { return lane.reading.n_heard < n_turns; };
    const auto say_next = [&](LaneState& lane, const LaneState& reader) {
        Turn(context, state.to_say[to_index(lane.reading.n_heard++)]).say(lane, reader, state.row, false);
    };
    const bool reference_hears = can_hear(reference) && answer_ended(context, reference, state.row);
    const int n_turn = reference.reading.n_heard;
    for_all_lanes(state, [&](LaneState& lane) {
        if (&lane == &reference || !can_hear(lane)) return;
        if (state.follow ? reference_hears : answer_ended(context, lane, state.row))
            say_next(lane, state.follow ? reference : lane);
        else if (reference_hears && lane.reading.n_heard <= n_turn)
            say_next(lane, lane);
    });
    if (reference_hears) say_next(reference, reference);
}

}  // namespace keyhole
