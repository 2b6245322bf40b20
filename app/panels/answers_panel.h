/// Draws what each lane answers by itself: a line a lane, with the words that differ from lane 0's framed,
/// and a button that explains a wrong answer. Window thread.
#pragma once

#include "app/panels/panel.h"
#include "app/state/shown_answers.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace keyhole {

struct AnswersPanel {
    std::vector<ShownAnswer> answers;
    std::vector<std::string> titles;    ///< one an answer
    std::vector<std::string> settings;  ///< [lane] of its text, if its answer has others
    std::string caption;
    bool waits = false;    ///< more is to come
    float more_lines = 0;  ///< height that long answers need beyond one line each, as of the last frame
    /// The state that they were made of.
    struct MadeOf {
        std::uint64_t generation = 0;
        int last_row = -1;
        int lane = -1;            // in focus
        std::uint64_t lanes = 0;  // LaneEditor::version()
        std::optional<TokenSpan> watched;
        int watched_since_turn = -1;
        RunState::Records records = RunState::Records::current;
        std::string right;  // the right answer
        bool answering = false, needs_stop = false;
        std::shared_ptr<const std::vector<LaneAnswer>> answers;
        bool operator==(const MadeOf&) const = default;
    };
    std::optional<MadeOf> made_of;
};

/// Returns the state that the answers are made of at present.
AnswersPanel::MadeOf answers_made_of(const AppState& app);
/// Returns the height that all lines need, in pixels.
float answers_height(const AnswersPanel& panel, const PanelContext& context);

void draw(AnswersPanel& panel, const PanelContext& context);

}  // namespace keyhole
