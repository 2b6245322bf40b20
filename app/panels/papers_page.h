/// Draws the figures of the papers: a list with thumbnails and what each found here, or one picture. Window
/// thread.
#pragma once

#include "app/gl/picture_textures.h"
#include "app/panels/panel.h"

namespace keyhole {

struct PapersPage {
    PictureTextures pictures;
};

/// Draws AppState::papers into the current window.
void draw(PapersPage& page, const PanelContext& context);

}  // namespace keyhole
