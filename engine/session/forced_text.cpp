#include "engine/session/forced_text.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/session/prompt.h"

#include <algorithm>
#include <string>

namespace keyhole {

namespace {

/// Returns whether lane 0 has chosen its end token in the current row. Forced tokens are no answer.
bool answer_ended(const RunContext& context, const SessionState& state) {
    const Lane& lane = state.lanes.front();
    const std::vector<int>& eos = context.model->config().eos;
    return !lane.tokens.empty() && state.forced.empty() &&
           std::find(eos.begin(), eos.end(), lane.token) != eos.end();
}

void say_now(const RunContext& context, SessionState& state, std::string text, bool instead) {
    if (context.start.chat) {
        const ChatTemplate chat = chat_template_of(*context.model);
        const Lane& lane = state.lanes.front();
        const bool ended =
            !lane.tokens.empty() && ends_answer(chat.format, context.run->token_bytes[to_index(lane.token)]);
        text = next_turn(chat, text, ended);
    }
    force_tokens(context, state, context.model->tokenizer().encode(text, false), instead);
    if (!state.forced.empty()) state.turn_end = state.row + static_cast<int>(state.forced.size());
}

}  // namespace

void force_tokens(const RunContext& context, SessionState& state, const std::vector<int>& tokens,
                  bool instead) {
    const int n_vocab = context.model->config().n_vocab;
    for (const int token : tokens)
        if (token < 0 || token >= n_vocab)
            fail(ErrorCode::wrong_use, "there is no token {}; the model has 0 to {}", token, n_vocab - 1);
    if (instead) state.forced.clear();
    if (instead && state.turn_end > state.row) state.turn_end = -1;  // the rest of the turn is dropped
    state.forced.insert(state.forced.end(), tokens.begin(), tokens.end());
    for (Lane& lane : state.lanes) {
        const int last_row = context.n_prompt() + static_cast<int>(lane.tokens.size()) - 1;
        if (lane.ended && last_row == state.row) lane.ended = false;
    }
}

void say_text(const RunContext& context, SessionState& state, const SayText& say) {
    if (!say.after) return say_now(context, state, say.text, say.instead);
    state.to_say.push_back(say.text);
    say_what_waits(context, state);
}

void say_what_waits(const RunContext& context, SessionState& state) {
    if (state.to_say.empty() || !answer_ended(context, state)) return;
    const std::string text = state.to_say.front();
    state.to_say.erase(state.to_say.begin());
    say_now(context, state, text, false);
}

}  // namespace keyhole
