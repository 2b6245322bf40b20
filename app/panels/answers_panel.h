/// Draws what each lane answers by itself: a line a lane, with the words that differ from lane 0's framed,
/// and a button that explains a wrong answer. Window thread.
#pragma once

#include "app/panels/panel.h"
#include "app/state/shown_answers.h"

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace keyhole {

struct AnswersPanel {
    std::vector<ShownAnswer> answers;
    std::vector<std::string> settings;  ///< [lane] of its text, if its answer has others
    std::string caption;
    /// The state that they were made of.
    std::tuple<std::uint64_t, int, std::vector<LaneSpec>, int, std::shared_ptr<const std::vector<LaneAnswer>>>
        made_of;
};

/// Returns the height that all lines need, in pixels.
float answers_height(const PanelContext& context);

void draw(AnswersPanel& panel, const PanelContext& context);

}  // namespace keyhole
