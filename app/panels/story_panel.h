/// Draws the story of a run: question, text, each lane's answer, what it attends to meanwhile, and which
/// heads still hold the words: see state/story.h. Window thread, within a frame.
#pragma once

#include "app/panels/answers_panel.h"
#include "app/panels/text_panel.h"
#include "app/state/story.h"

#include <memory>
#include <optional>

namespace keyhole {

struct StoryPanel {
    Story story;
    /// What it was made of, beside what the answers are made of.
    struct MadeOf {
        AnswersPanel::MadeOf answers;
        bool follow = false;
        std::shared_ptr<const Counterfactual> counterfactual;
        bool operator==(const MadeOf&) const = default;
    };
    std::optional<MadeOf> made_of;
    TextPanel text;
};

void draw(StoryPanel& panel, const PanelContext& context);

}  // namespace keyhole
