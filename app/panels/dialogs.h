/// Draws the dialogs over the window: command palette, keys, export, file names, go to, find, about. Window
/// thread.
#pragma once

#include "app/panels/panel.h"

#include <memory>
#include <string_view>

namespace keyhole {

struct DialogPages;  // what single dialogs remember

struct Dialogs {
    std::shared_ptr<DialogPages> pages;
    Dialog shown = Dialog::none;
    std::string text;  ///< in the palette's field, or in the only field
    std::string note;  ///< what the form's action said last; note_is_fault: why it failed
    bool note_is_fault = false;
    std::string replaces;  ///< the file that the next press replaces; asked_at: seconds, as ImGui counts
    double asked_at = 0;
    int selected = 0;                    ///< in the palette
    std::string found = {};              ///< the words that were looked for last
    bool to_end = false;                 ///< the palette's cursor goes behind the words
    bool takes_focus = false;            ///< the field, in the next frame
    std::string_view picture_part = "";  ///< of kShownParts
    int picture_width = 0;               ///< 0: cells of whole pixels
    bool picture_of_shown = false;
    bool picture_is_dark = false;  ///< light is for paper
    int selected_by = 0;           ///< moves by the arrow keys
    float content_height = 0;      ///< of the last frame
};

void draw(Dialogs& panel, const PanelContext& context);
/// Returns the bytes of the pictures that the dialogs hold as textures.
std::size_t texture_bytes(const Dialogs& panel);

}  // namespace keyhole
