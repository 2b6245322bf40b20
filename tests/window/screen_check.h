/// Compares one frame of the window with the engine's records: the texts and colours that ImGui draws, and
/// the matrices behind the heat maps. A lane on the screen is a number and a name; all that stands under them
/// must be of one recorded lane with these settings, at the step that the window shows, or be left out.
/// Window thread.
#pragma once

#include "app/panels/panel.h"
#include "app/window/screen_text.h"
#include "tests/window/run_archive.h"

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace keyhole::testing {

class ScreenCheck {
  public:
    /// The frame of ImGui::GetDrawData(). settled: no request is open, so that the lanes on the screen are
    /// those of the engine, in their order.
    ScreenCheck(const AppState& app, const PanelShared& shared, const RunArchive& archive, bool settled);

    /// Returns what is wrong on the screen, each with the pane before a colon.
    std::vector<std::string> faults();
    /// Returns whether the frame could be compared: the archive holds the shown step.
    bool judged() const { return truth_ != nullptr; }
    /// Returns the lines of a pane, for a message.
    std::string words_of(const std::string& pane) const;

    /// What the answers' pane says.
    struct AnswerLine {
        int lane = 0;
        std::string title, words;
        bool right = false, wrong = false;
    };
    std::vector<AnswerLine> answer_lines() const;
    /// Returns the sentence below the answers.
    std::string reason() const;

  private:
    /// One statement on the screen about a lane.
    struct Statement {
        std::string pane, text;
        /// Tells whether it is true of a lane of the record (index) at the shown step.
        std::function<bool(int)> holds;
    };
    const AppState& app_;
    const PanelShared& shared_;
    const RunArchive& archive_;
    const bool settled_;
    const RunHistory* truth_ = nullptr;  ///< null: the shown step is not in the archive
    int row_ = 0;
    std::vector<ScreenText> texts_;
    std::map<std::string, std::vector<ScreenText>> panes_;
    std::map<int, std::vector<Statement>> statements_;  // by the lane's number on the screen
    std::map<int, int> parents_;  // of lanes that show another lane's records; -1: of one that is not listed
    std::vector<std::string> faults_;

    void state(int lane, const std::string& pane, std::string text, std::function<bool(int)> holds);
    /// States that a pane gives a lane's number this name, and something under it.
    void state_name(int lane, const std::string& pane, const std::string& title);
    const LaneRecord* record(int lane) const { return truth_->lane_record(row_, lane); }
    /// The archive has a later step than the window. What a command evicts stands in the step after it.
    bool is_ahead() const { return truth_->last_row() != app_.run.last_row(); }
    std::vector<ScreenText> texts_in(ImVec2 min, ImVec2 max) const;

    void read_marks();
    void read_lanes();
    void read_next_tokens();
    void read_watched();
    void read_text();
    void read_answers();
    void read_maps();
    void read_map(int lane, const std::string& pane, const HeatData& data, int seed);
    void read_atlas();
    void read_steps();
    bool may_show(int lane, int known) const;
    void judge();
};

/// Returns whether a name on the screen, such as "a2sf alpha=0.2", is one of these settings.
bool names(const std::string& name, const LaneSpec& spec);

}  // namespace keyhole::testing
