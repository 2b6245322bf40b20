/// Draws the figures of the papers: a list with thumbnails and what each found here, or one picture. Window
/// thread.
#pragma once

#include "app/gl/picture_textures.h"
#include "app/panels/panel.h"

#include <string>
#include <vector>

namespace keyhole {

/// A model on which figures can be made: its name, and what --model takes.
struct ModelChoice {
    std::string name, path;
};

struct PapersPage {
    PictureTextures pictures;
    std::vector<ModelChoice> models;  ///< in this frame: that of the run first, then those that are here
};

/// Draws AppState::papers into the current window.
void draw(PapersPage& page, const PanelContext& context);

}  // namespace keyhole
