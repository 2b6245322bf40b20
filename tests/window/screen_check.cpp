#include "tests/window/screen_check.h"
#include "tests/window/screen_words.h"

#include "engine/base/error.h"
#include "engine/base/index.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace keyhole::testing {

bool names(const std::string& name, const LaneSpec& spec) {
    std::istringstream words(name);
    std::string preset;
    words >> preset;
    if (const std::size_t cut = preset.find("…"); cut != std::string::npos)  // in a narrow column
        return preset_name(spec.policy.preset).starts_with(preset.substr(0, cut));
    if (preset != preset_name(spec.policy.preset)) return false;
    for (std::string word; words >> word;) {
        if (word.find("…") != std::string::npos) break;  // cut at the end of a column
        if (word.find('=') == std::string::npos) continue;
        try {
            if (!(changed_lane_spec(spec, word) == spec)) return false;
        } catch (const Error&) {
        }  // "none", the value of a setting that only another lane has
    }
    return true;
}

ScreenCheck::ScreenCheck(const AppState& app, const PanelShared& shared, const RunArchive& archive,
                         bool settled)
    : app_(app),
      shared_(shared),
      archive_(archive),
      settled_(settled),
      texts_(screen_texts(*ImGui::GetDrawData())) {
    for (const ScreenText& text : texts_) panes_[pane_of(text, shared)].push_back(text);
    if (!app.run.has_steps()) return;
    row_ = app.view.row;
    const RunHistory* run = archive.run(app.run.history.run().id);
    // The engine may have gone back to before the shown step since.
    if (run == nullptr || row_ < run->steps().front()->row || row_ > run->last_row() ||
        app.run.last_row() > run->last_row() || &run->at_row(row_) != &app.run.history.at_row(row_) ||
        &run->at_row(app.run.last_row()) != &app.run.history.at_row(app.run.last_row()))
        return;
    truth_ = run;
}

std::string ScreenCheck::words_of(const std::string& pane) const {
    std::string words;
    for (const auto& [name, lines] : lines_of_panes(texts_, shared_))
        if (name == pane) words = fmt::format("{}", fmt::join(lines, "\n      "));
    return words;
}

std::vector<ScreenText> ScreenCheck::texts_in(ImVec2 min, ImVec2 max) const {
    std::vector<ScreenText> found;
    for (const ScreenText& text : texts_)
        if (inside(text, min, max)) found.push_back(text);
    std::ranges::stable_sort(found, {}, [](const ScreenText& text) { return text.min.x; });
    return found;
}

void ScreenCheck::state(int lane, const std::string& pane, std::string text, std::function<bool(int)> holds) {
    statements_[lane].push_back({pane, std::move(text), std::move(holds)});
}

void ScreenCheck::state_name(int lane, const std::string& pane, const std::string& title) {
    const std::string name = title.substr(std::min(title.find_first_not_of("0123456789 "), title.size()));
    state(lane, pane, "is " + name,
          [this, name](int known) { return names(name, parse_lane_spec(record(known)->info->spec)); });
}

/// Numbers of steps that the window says.
void ScreenCheck::read_steps() {
    for (const ScreenText& text : texts_) {
        if (text.text.find("nan") != std::string::npos && match(text.text, "\\bnan\\b"))
            faults_.push_back("nan: " + text.text);
        if (const auto after = match(text.text, "^after step (\\d+)");
            after && std::stoi((*after)[1]) != row_)
            faults_.push_back(fmt::format("details: '{}', the step is {}", text.text, row_));
        if (const auto counts = match(text.text, "^prompt (\\d+) · decoded (\\d+)"))
            if (std::stoi((*counts)[1]) != truth_->n_prompt() ||
                std::stoi((*counts)[2]) != app_.run.last_row() - truth_->n_prompt() + 1)
                faults_.push_back("status: " + text.text);
    }
}

/// Returns whether a lane on the screen may show the records of a lane of the history: its own, or those of
/// the lane that its mark names.
bool ScreenCheck::may_show(int lane, int known) const {
    const std::vector<int>& ids = archive_.status().lane_ids;
    const auto parent = parents_.find(lane);
    const int shown = parent == parents_.end() ? lane : parent->second;
    if (!settled_ || shown < 0 || to_index(shown) >= ids.size()) return true;
    return truth_->lanes()[to_index(known)].id == ids[to_index(shown)];
}

void ScreenCheck::judge() {
    for (const auto& [lane, statements] : statements_) {
        // The lane of the record of which most is true.
        std::vector<const Statement*> best;
        bool any = false;
        std::string of = "no lane";
        for (int known = 0; known < static_cast<int>(truth_->lanes().size()); ++known) {
            const int then = holder(*truth_, known, row_);
            if (record(then) == nullptr) continue;
            if (!may_show(lane, known)) continue;
            std::vector<const Statement*> wrong;
            for (const Statement& statement : statements)
                if (!statement.holds(then)) wrong.push_back(&statement);
            if (any && wrong.size() >= best.size()) continue;
            any = true;
            best = std::move(wrong);
            of = record(then)->info->spec;
        }
        if (!any)
            for (const Statement& statement : statements) best.push_back(&statement);
        std::map<std::string, std::string> by_pane;
        for (const Statement* statement : best) {
            std::string& text = by_pane[statement->pane];
            if (text.size() < 160) text += (text.empty() ? "" : "; ") + statement->text;
        }
        for (const auto& [pane, text] : by_pane)
            faults_.push_back(
                fmt::format("{}: lane {}, most like the recorded '{}': {}", pane, lane, of, text));
    }
}

std::vector<std::string> ScreenCheck::faults() {
    if (truth_ == nullptr) return {};
    read_steps();
    read_marks();
    read_lanes();
    read_next_tokens();
    read_watched();
    read_text();
    read_answers();
    read_maps();
    read_atlas();
    judge();
    return std::move(faults_);
}

}  // namespace keyhole::testing
