#include "app/actions/steer.h"

#include "engine/base/error.h"
#include "engine/model/tokenizer.h"

#include <fmt/format.h>

namespace keyhole {

namespace {

/// The rows that a text takes; the engine makes the same tokens of it.
int n_tokens(AppState& app, std::string_view text) {
    const auto model = app.engine().model();
    if (model == nullptr) fail(ErrorCode::wrong_use, "no model is loaded");
    return static_cast<int>(model->tokenizer().encode(text, false).size());
}

}  // namespace

void force_next(AppState& app, int row, int token) {
    app.need_live_run();
    if (row < app.last_row()) app.rewind(row);
    app.stop();
    app.lane_editor.run(ForceTokens{{token}, true});
    app.step(1);
    app.say(fmt::format("row {} takes “{}”", row + 1,
                        app.history.run().token_display.at(static_cast<std::size_t>(token))));
}

namespace {

void read_words(AppState& app, const std::string& command_text) {
    app.need_live_run();
    const Command command = parse_command(command_text);
    const int n = n_tokens(app, std::get<SayText>(command).text);
    app.stop();
    app.lane_editor.run(command);
    app.step(n);
    app.say(fmt::format("all lanes read {} token{} of yours", n, n == 1 ? "" : "s"));
}

}  // namespace

void say_turn(AppState& app, std::string_view text) {
    read_words(app, fmt::format("say {}", text));
}

void edit_text(AppState& app, int position, std::string_view text) {
    app.need_live_run();
    if (position < app.history.n_prompt() || position > app.last_row())
        fail(ErrorCode::wrong_use, "generated tokens are {} to {}; the prompt is edited above",
             app.history.n_prompt(), app.last_row());
    app.rewind(position - 1);
    read_words(app, fmt::format("say! {}", text));  // the row may lie inside a turn whose rest still waits
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
