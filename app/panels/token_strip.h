/// The text, coloured by kept share or score; evicted tokens struck through. Window thread.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

struct TokenStrip {
    int last_row = -1;  ///< scrolled to
};

void draw(TokenStrip& panel, const PanelContext& context);

}  // namespace keyhole
