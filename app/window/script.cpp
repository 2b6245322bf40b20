#include "app/window/script.h"

#include "app/window/command_table.h"
#include "engine/base/error.h"

#include <charconv>
#include <fstream>
#include <sstream>
#include <utility>

namespace keyhole {

namespace {

constexpr double kWaitLimitS = 180;

std::string trimmed(const std::string& text) {
    const std::size_t begin = text.find_first_not_of(" \t\r");
    if (begin == std::string::npos) return "";
    return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

std::vector<double> numbers(const std::string& text, std::size_t at_least, std::size_t at_most) {
    std::istringstream stream(text);
    std::vector<double> values;
    for (double value = 0; stream >> value;) values.push_back(value);
    if (!stream.eof() || values.size() < at_least || values.size() > at_most)
        fail(ErrorCode::wrong_use, "'{}' is not {} number(s)", text, at_least);
    return values;
}

}  // namespace

Script Script::from_file(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    if (!file)
        fail(ErrorCode::bad_file, "reading the script {}: cannot be read; check the path", path.string());
    return from_text(path.string(), text.str());
}

Script Script::from_text(std::string name, const std::string& text) {
    Script script;
    script.name_ = std::move(name);
    std::istringstream stream(text);
    std::string line;
    for (int number = 1; std::getline(stream, line); ++number) {
        line = trimmed(line);
        if (!line.empty() && line[0] != '#') script.lines_.push_back({number, line});
    }
    return script;
}

bool Script::may_go_on(const AppState& app, const std::string& what) const {
    if (what == "idle") return app.idle();
    if (what.starts_with("seconds ")) {
        const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - wait_begin_;
        return waited.count() >= numbers(what.substr(8), 1, 1)[0];
    }
    if (what.starts_with("rows "))
        return app.n_decoded() >= static_cast<int>(numbers(what.substr(5), 1, 1)[0]);
    fail(ErrorCode::wrong_use, "wait rows N, wait idle, or wait seconds S");
}

void Script::point_at(const std::string& rest, const FindItem& find_item) {
    // Names may hold blanks; what is left after the longest name that exists is where on the widget.
    for (std::size_t end = rest.size(); end != std::string::npos; end = rest.rfind(' ', end - 1)) {
        const auto box = find_item ? find_item(rest.substr(0, end)) : std::nullopt;
        if (box) {
            std::vector<double> part = {0.5, 0.5};
            if (end < rest.size()) part = numbers(rest.substr(end), 2, 2);
            input.mouse_x = (*box)[0] + ((*box)[2] - (*box)[0]) * part[0];
            input.mouse_y = (*box)[1] + ((*box)[3] - (*box)[1]) * part[1];
            return;
        }
        if (end == 0) break;
    }
    fail(ErrorCode::wrong_use, "no widget '{}' is on show", rest);
}

bool Script::advance(AppState& app, const FindItem& find_item) {
    if (done()) return true;
    if (deadline_ && std::chrono::steady_clock::now() > *deadline_)
        while (next_ + 1 < lines_.size() && lines_[next_].text != "finally") {
            ++next_;
            waiting_ = false;
        }
    const Line& line = lines_[next_];
    try {
        const std::size_t blank = line.text.find(' ');
        const std::string word = line.text.substr(0, blank);
        const std::string rest = blank == std::string::npos ? "" : trimmed(line.text.substr(blank));
        if (word == "deadline") {
            deadline_ = std::chrono::steady_clock::now() +
                        std::chrono::milliseconds(static_cast<int>(1000 * numbers(rest, 1, 1)[0]));
        } else if (word == "finally") {
            deadline_.reset();
        } else if (word == "try") {
            try {
                tried_ = true;
                run_command(app, rest);
            } catch (const Error& error) {
                app.say(error.what(), true);
            }
        } else if (word == "wait") {
            const auto now = std::chrono::steady_clock::now();
            if (!waiting_) wait_begin_ = now;
            waiting_ = true;
            if (!tried_ && !rest.starts_with("seconds") && app.live() &&
                app.status.phase == EnginePhase::failed && app.idle())
                fail(ErrorCode::wrong_use, "the run failed: {}", app.status.message);
            if (!may_go_on(app, rest)) {
                if (const double done = app.status.progress + app.n_decoded(); done != wait_progress_) {
                    wait_progress_ = done;
                    progress_at_ = now;  // a long prompt may take its time
                }
                if (std::chrono::duration<double>(now - std::max(wait_begin_, progress_at_)).count() >
                    kWaitLimitS)
                    fail(ErrorCode::wrong_use, "waited {:.0f} s in vain; {} rows are decoded", kWaitLimitS,
                         app.n_decoded());
                return false;
            }
            waiting_ = false;
            if (std::exchange(tried_, false)) app.refusal.clear();
            if (!app.refusal.empty()) fail(ErrorCode::wrong_use, "{}", std::exchange(app.refusal, ""));
        } else if (word == "mouse") {
            const std::vector<double> at = numbers(rest, 2, 2);
            input.mouse_x = at[0];
            input.mouse_y = at[1];
        } else if (word == "point") {
            point_at(rest, find_item);
        } else if (word == "press" || word == "release") {
            input.held = word == "release" ? 0
                         : rest.empty()    ? 1
                                           : static_cast<int>(numbers(rest, 1, 1)[0]) + 1;
        } else if (word == "click") {
            input.clicks = rest.empty() ? 1 : static_cast<int>(numbers(rest, 1, 1)[0]) + 1;
        } else if (word == "wheel") {
            input.wheel = numbers(rest, 1, 1)[0];
        } else if (word == "drop") {
            for (std::size_t begin = 0; begin < rest.size();) {
                const std::size_t end = std::min(rest.find('|', begin), rest.size());
                input.dropped.push_back(rest.substr(begin, end - begin));
                begin = end + 1;
            }
            if (input.dropped.empty()) fail(ErrorCode::wrong_use, "a path is needed");
        } else if (word == "text") {
            input.text = rest;
        } else if (word == "key") {
            bool found = false;
            for (const UserCommand& command : command_table()) {
                if (command.shortcut.code == 0 || shortcut_text(command.shortcut) != rest) continue;
                command.action(app, "");
                found = true;
            }
            if (!found) fail(ErrorCode::wrong_use, "no command has the key '{}'", rest);
        } else {
            run_command(app, line.text);
        }
        ++next_;
        return true;
    } catch (const std::exception& error) {
        fail(ErrorCode::wrong_use, "{}, line {} '{}': {}", name_, line.number, line.text, error.what());
    }
}

}  // namespace keyhole
