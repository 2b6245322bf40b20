/// Reports the state of the window to a program that drives or reads it from outside (`gui --report FILE`).
/// Writes one JSON object whenever it changes, and renames it into place, so that the file is always
/// complete. Window thread.
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
    /// path: empty: nothing is written.
    explicit WindowReport(std::filesystem::path path) : path_(std::move(path)) {}
    /// Counts a frame, and the input events that it took.
    void count(std::span<const InputEvent> taken);
    bool wanted() const { return !path_.empty(); }
    /// Writes the report if it differs from the last one. Call at the end of a frame, and without a frame if
    /// is_late(): collecting the texts takes long. waiting: later frames have input to take, or will show the
    /// widgets elsewhere. Throws Error(io).
    void write(const AppState& app, const PanelShared& shared, const KeyFocus& keys, bool waiting);

    /// Returns whether the engine, a lesson or the input has come to rest or gone on since the last report.
    bool is_late(const AppState& app, bool waiting) const {
        return wanted() && rest_ != rest_of(app, waiting);
    }

  private:
    /// What changes without a frame.
    struct Rest {
        bool idle = false, lesson_waits = false, input_waits = false;
        int phase = -1, rows = -1;
        bool operator==(const Rest&) const = default;
    };
    static Rest rest_of(const AppState& app, bool waiting);

    Rest rest_;
    std::filesystem::path path_;
    std::string written_;
    std::int64_t n_frames_ = 0, n_buttons_ = 0, n_keys_ = 0, n_turns_ = 0;
};

}  // namespace keyhole
