/// Reads back a drawn frame: as screenshots, and as cells with their pixels for tests. Window thread, with a
/// current context, after drawing and before the swap.
#pragma once

#include "app/panels/panel.h"

#include <filesystem>

namespace keyhole {

/// Writes the frame as PNG, which keeps what made it. Throws Error(io).
void write_screenshot(const std::filesystem::path& path, int width, int height, const std::string& made_by);

/// Writes 20 cells spread over the visible part of the heat map as JSON: {"lane", "layer", "head", "mode",
/// "scale", "cells": [{"row", "position", "rows", "positions", "value", "x", "y", "rgb"}]}. If a pixel
/// covers several cells, the entry has the block's first cell, its extent and its maximum. Throws Error(io).
void dump_cells(const std::filesystem::path& path, const AppState& app, const PanelShared& shared,
                int frame_height);

}  // namespace keyhole
