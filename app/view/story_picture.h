/// The pictures of more than one lane that the window shows: its story, and the focused head of lanes side by
/// side. Drawn from the data; window thread or an export's; knows no window.
#pragma once

#include "app/view/pictures.h"

namespace keyhole {

/// Draws the story of a run (see story_text.h): the source's, else that of its records. The map is of the
/// source's head if it names one, else of the head that tells most.
Drawing story_picture(const PictureJob& job);

/// Draws the shown head of the source's lanes side by side in one range of colours, with what each answers.
Drawing lanes_picture(const PictureJob& job);

}  // namespace keyhole
