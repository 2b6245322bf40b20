#include "app/actions/script.h"

#include "app/actions/action_table.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"

#include <algorithm>
#include <utility>

namespace keyhole {

namespace {

constexpr double kWaitLimitS = 180;

}  // namespace

Script Script::from_lines(std::string name, std::vector<ScriptLine> lines) {
    Script script;
    script.name_ = std::move(name);
    for (ScriptLine& read : lines) {
        Line line{read.number, std::move(read.text), {}};
        try {
            line.step = parse_script_step(line.text);
        } catch (const Error& error) {
            script.refuse(line, error.what());
        }
        script.lines_.push_back(std::move(line));
    }
    return script;
}

Script Script::from_file(const std::filesystem::path& path) {
    return from_lines(path.string(), read_script_lines(path));
}

Script Script::from_text(std::string name, std::string_view text) {
    return from_lines(std::move(name), script_lines(text));
}

void Script::refuse(const Line& line, const char* why) const {
    fail(ErrorCode::wrong_use, "{}, line {} '{}': {}", name_, line.number, shown_text(line.text), why);
}

bool Script::may_go_on(const ScriptStep& wait, const AppState& app) const {
    if (wait.kind == ScriptStep::Kind::wait_idle) return app.idle() && app.doctor.complete();
    if (wait.kind == ScriptStep::Kind::wait_steps) return app.run.n_decoded() >= wait.n;
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - wait_begin_;
    return waited.count() >= wait.seconds;
}

void Script::point_at(const std::string& rest, const FindItem& find_item) {
    // Names may contain blanks: finds the longest existing name; the rest is the place on the widget.
    for (std::size_t end = rest.size(); end != std::string::npos; end = rest.rfind(' ', end - 1)) {
        const auto box = find_item ? find_item(rest.substr(0, end)) : std::nullopt;
        if (box) {
            std::pair<double, double> part = {0.5, 0.5};
            if (end < rest.size()) part = parse_parts(std::string_view(rest).substr(end));
            input.mouse_x = (*box)[0] + ((*box)[2] - (*box)[0]) * part.first;
            input.mouse_y = (*box)[1] + ((*box)[3] - (*box)[1]) * part.second;
            return;
        }
        if (end == 0) break;
    }
    fail(ErrorCode::wrong_use, "no widget '{}' is visible", rest);
}

bool Script::wait(const ScriptStep& step, AppState& app) {
    const auto now = std::chrono::steady_clock::now();
    if (!waiting_) wait_begin_ = now;
    waiting_ = true;
    if (!tried_ && step.kind != ScriptStep::Kind::wait_seconds && app.run.live() &&
        app.run.status.phase == EnginePhase::failed && app.idle())
        fail(ErrorCode::wrong_use, "the run failed: {}", app.run.status.message);
    if (!may_go_on(step, app)) {
        if (const double done = app.run.status.progress + app.run.n_decoded(); done != wait_progress_) {
            wait_progress_ = done;
            progress_at_ = now;  // a long prompt may take long
        }
        if (std::chrono::duration<double>(now - std::max(wait_begin_, progress_at_)).count() > kWaitLimitS)
            fail(ErrorCode::wrong_use, "waited {:.0f} s, which is the limit; {} tokens are decoded",
                 kWaitLimitS, app.run.n_decoded());
        return false;
    }
    waiting_ = false;
    if (std::exchange(tried_, false)) app.refusal.clear();
    if (!app.refusal.empty()) fail(ErrorCode::wrong_use, "{}", std::exchange(app.refusal, ""));
    return true;
}

bool Script::run(const ScriptStep& step, AppState& app, const FindItem& find_item) {
    switch (step.kind) {
        case ScriptStep::Kind::command:
            run_action(app, step.words);
            break;
        case ScriptStep::Kind::attempt:
            try {
                tried_ = true;
                run_action(app, step.words);
            } catch (const Error& error) {
                app.notify(error.what(), true);
            }
            break;
        case ScriptStep::Kind::deadline:
            deadline_ = std::chrono::steady_clock::now() +
                        std::chrono::milliseconds(static_cast<std::int64_t>(1000 * step.seconds));
            break;
        case ScriptStep::Kind::finally:
            deadline_.reset();
            break;
        case ScriptStep::Kind::wait_idle:
        case ScriptStep::Kind::wait_steps:
        case ScriptStep::Kind::wait_seconds:
            return wait(step, app);
        case ScriptStep::Kind::mouse:
            input.mouse_x = step.x;
            input.mouse_y = step.y;
            break;
        case ScriptStep::Kind::point:
            point_at(step.words, find_item);
            break;
        case ScriptStep::Kind::press:
            input.held = step.n + 1;
            break;
        case ScriptStep::Kind::release:
            input.held = 0;
            break;
        case ScriptStep::Kind::click:
            input.clicks = step.n + 1;
            break;
        case ScriptStep::Kind::wheel:
            input.wheel = step.x;
            break;
        case ScriptStep::Kind::drop:
            input.dropped.insert(input.dropped.end(), step.paths.begin(), step.paths.end());
            break;
        case ScriptStep::Kind::text:
            input.text = step.words;
            break;
        case ScriptStep::Kind::key: {
            bool found = false;
            for (const UserAction& action : action_table()) {
                if (action.shortcut.code == 0 || shortcut_text(action.shortcut) != step.words) continue;
                action.run(app, "");
                found = true;
            }
            if (!found) fail(ErrorCode::wrong_use, "no command has the key '{}'", step.words);
            break;
        }
    }
    return true;
}

bool Script::advance(AppState& app, const FindItem& find_item) {
    if (done()) return true;
    if (deadline_ && std::chrono::steady_clock::now() > *deadline_)
        while (next_ + 1 < lines_.size() && lines_[next_].step.kind != ScriptStep::Kind::finally) {
            ++next_;
            waiting_ = false;
        }
    const Line& line = lines_[next_];
    try {
        if (!run(line.step, app, find_item)) return false;
        ++next_;
        return true;
    } catch (const std::exception& error) {
        refuse(line, error.what());
    }
}

}  // namespace keyhole
