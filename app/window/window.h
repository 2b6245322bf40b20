/// Opens the window and runs it: GLFW and GL setup, frame loop, layout of the panels. Runs on the calling
/// (main) thread until the window is closed.
#pragma once

#include "app/actions/script.h"
#include "app/panels/panel.h"
#include "app/state/app_state.h"
#include "engine/base/backend_options.h"

#include <optional>

namespace keyhole {

/// Drives the window from within its process in place of a script, and sees every frame.
struct WindowDriver {
    virtual ~WindowDriver() = default;
    /// Called in every turn of the frame loop, before a frame. Returns true if it did something.
    virtual bool turn(AppState& app) = 0;
    /// Called after every frame. ImGui::GetDrawData() is what it drew.
    virtual void drawn(AppState& app, const PanelShared& shared) = 0;
};

struct WindowOptions {
    RunSetup setup;
    bool follow = false;         ///< all lanes of the first run read lane 0's words
    std::filesystem::path open;  ///< a trace; empty: none
    std::string lesson;          ///< by number, name or file; empty: none
    std::optional<Script> script;
    WindowDriver* driver = nullptr;  ///< outlives run_window()
    BackendOptions backend;
    std::filesystem::path report;       ///< see WindowReport; empty: none
    std::filesystem::path settings;     ///< read at the start, written at the end; empty: none
    std::filesystem::path run_backups;  ///< folder that stores the run while the window is open; empty: none
    int width = 0, height = 0;          ///< 0: three quarters of the screen, within reason
};

/// Throws Error(device) without a display or OpenGL 3.3, and Error(wrong_use) from the script.
void run_window(WindowOptions options);

}  // namespace keyhole
