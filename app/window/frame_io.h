/// What is read back from a drawn frame: screenshots, and cells with their pixels for tests. Window thread, with
/// a current context, after drawing and before the swap.
#pragma once

#include "app/panels/panel.h"

#include <filesystem>

namespace keyhole {

/// Writes the frame as PNG. Throws Error(io).
void write_screenshot(const std::filesystem::path& path, int width, int height);

/// 20 cells of the heat map, spread over the visible ones, as JSON: {"lane", "layer", "head", "mode", "scale",
/// "cells": [{"row", "position", "rows", "positions", "value", "x", "y", "rgb"}]}. A pixel that covers several
/// cells gives the block's first cell, its extent and its maximum. Throws Error(io).
void dump_cells(const std::filesystem::path& path, const AppState& app, const PanelShared& shared,
                int frame_height);

}  // namespace keyhole
