#include "app/actions/steer.h"

#include "app/actions/history_actions.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/live/engine.h"
#include "engine/model/tokenizer.h"

#include <fmt/format.h>

namespace keyhole {

namespace {

/// Returns the number of steps that consume a text. The engine makes the same tokens from it.
int n_tokens(AppState& app, std::string_view text) {
    const auto model = app.run.model();
    if (model == nullptr) fail(ErrorCode::wrong_use, "no model is loaded");
    return static_cast<int>(model->tokenizer().encode(text, false).size());
}

}  // namespace

void force_next(AppState& app, int row, int token) {
    app.run.need_live_run();
    const Engine::Together together(app.run.engine());
    if (row < app.run.last_row()) app.rewind(row);
    app.run.stop();
    app.run.lane_editor.run(ForceTokens{{token}, true});
    const std::string word = app.run.history.run().token_display.at(to_index(token));
    app.announce(fmt::format("the next step consumes “{}”", word), [word, row](const RunState& run) {
        return fmt::format("step {} consumes “{}”", row_of_last<ForceTokens>(run).value_or(row) + 1, word);
    });
    app.step(1);
}

namespace {

void read_words(AppState& app, const std::string& command_text) {
    app.run.need_live_run();
    const Command command = parse_command(command_text);
    const int n = n_tokens(app, std::get<SayText>(command).text);
    const Engine::Together together(app.run.engine());
    app.run.stop();
    app.run.lane_editor.run(command);
    app.step(n);
    app.notify(fmt::format("all lanes read {} token{} of your text", n, n == 1 ? "" : "s"));
}

}  // namespace

void say_turn(AppState& app, std::string_view text) {
    read_words(app, fmt::format("say {}", text));
}

void edit_text(AppState& app, int position, std::string_view text) {
    app.run.need_live_run();
    if (position < app.run.history.n_prompt() || position > app.run.last_row())
        fail(ErrorCode::wrong_use, "generated tokens are {} to {}; the prompt is edited above",
             app.run.history.n_prompt(), app.run.last_row());
    const Engine::Together together(app.run.engine());
    app.rewind(position - 1);
    // `say!` drops queued tokens: the step may lie inside an earlier turn whose rest still waits.
    read_words(app, fmt::format("say! {}", text));
}

std::string quoted_as_typed(std::string_view typed) {
    std::string out = "\"";
    for (std::size_t i = 0; i < typed.size(); ++i) {
        const char c = typed[i], next = i + 1 < typed.size() ? typed[i + 1] : ' ';
        if (c == '\\' && (next == 'n' || next == 't')) {
            out += c;
            out += next;
            ++i;
            continue;
        }
        if (c == '"' || c == '\\') out += '\\';
        out += c;
    }
    return out + "\"";
}

}  // namespace keyhole
