/// Draws the menus, and the bar below them: run and stop, one step, speed, model, prompt and restart.
/// Window thread, within a frame; changes the run only by commands.
#pragma once

#include "app/lessons/lesson_list.h"
#include "app/panels/panel.h"
#include "app/panels/wrapped_field.h"

namespace keyhole {

struct TopBar {
    std::string draft;                  ///< the prompt's text as typed; it outlives its popup
    std::string draft_of;               ///< the run's prompt when the draft was begun
    std::filesystem::path draft_file;   ///< the draft came from it; empty: from the run
    std::string file_text;              ///< the draft as it came from the file or the run
    std::string answer;                 ///< the right answer as typed; empty: not known
    std::string file_answer;            ///< as it came with file_text from a file; empty: none
    std::string shows;                  ///< what the sample is for whose button was pressed last
    bool draft_is_new = false;          ///< not yet wrapped into lines
    WrappedField field;                 ///< shows the draft
    std::string model_text;             ///< the name of the model as typed in its popup
    std::vector<ListedLesson> lessons;  ///< as the menu lists them, read when it opens
    bool was_getting = false;           ///< a model was being downloaded in the frame before
};

void draw_menus(TopBar& panel, const PanelContext& context);
void draw(TopBar& panel, const PanelContext& context);

}  // namespace keyhole
