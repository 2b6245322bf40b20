#include "app/window/steer.h"

#include "engine/base/error.h"
#include "engine/model/tokenizer.h"

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
    app.desk.run(ForceTokens{{token}});
    app.step(1);
    app.say(fmt::format("row {} takes “{}”", row + 1,
                        app.history.run().token_display.at(static_cast<std::size_t>(token))));
}

void say_turn(AppState& app, std::string_view text) {
    app.need_live_run();
    const Command command = parse_command(std::string("say ") + std::string(text));
    const int n = n_tokens(app, std::get<SayText>(command).text);
    app.stop();
    app.desk.run(command);
    app.step(n);
    app.say(fmt::format("all lanes read {} token{} of yours", n, n == 1 ? "" : "s"));
}

void edit_text(AppState& app, int position, std::string_view text) {
    app.need_live_run();
    if (position < app.history.n_prompt() || position > app.last_row())
        fail(ErrorCode::wrong_use, "generated tokens are {} to {}; the prompt is edited above",
             app.history.n_prompt(), app.last_row());
    app.rewind(position - 1);
    say_turn(app, text);
}

}  // namespace keyhole
