/// What is on show, for a program that drives or reads the window from outside (`gui --report FILE`): one JSON object, written anew when
/// it changes and renamed into place, so that it is whole at any time. Window thread.
#pragma once

#include "app/panels/panel.h"
#include "app/window/input_queue.h"
#include "app/window/key_focus.h"

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace keyhole {

class WindowReport {
  public:
    /// An empty path: nothing is written.
    explicit WindowReport(std::filesystem::path path) : path_(std::move(path)) {}
    /// Counts a frame, and what it took of the input queue.
    void count(std::span<const InputEvent> taken);
    bool wanted() const { return !path_.empty(); }
    /// At the end of a frame, and where none is due; waiting: input that later frames take. Throws Error(io).
    void write(const AppState& app, const PanelShared& shared, const KeyFocus& keys, bool waiting);

  private:
    std::filesystem::path path_;
    std::string written_;
    std::int64_t n_frames_ = 0, n_buttons_ = 0, n_keys_ = 0, n_turns_ = 0;
};

}  // namespace keyhole
