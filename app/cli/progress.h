/// Shows on stderr how far a command is: a bar with an estimate on a terminal, else a plain line now and
/// then. Main thread. Knows no command.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace keyhole {

/// What a progress shows at a time. Knows no clock and no terminal.
class ProgressText {
  public:
    /// every_s: least seconds between two lines; negative: there are none.
    ProgressText(std::string title, bool is_bar, double every_s);

    /// Returns what is shown now; empty: nothing new. seconds: since the beginning; they never decrease.
    std::string at(double seconds, double share, std::string_view part);

  private:
    std::string title_;
    bool is_bar_;
    double every_s_, next_s_;
};

/// There is one for all of a command's work: of two, the newer one writes over the other's bar. Shown text of
/// print_out() and print_note() takes the bar away; the next update() draws it again.
class Progress {
  public:
    /// total: of `done`, in any unit that grows evenly with time.
    Progress(std::string title, double total);
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;
    void update(double done);
    /// Names the part of the work that is going on, such as a task.
    void set_part(std::string part) { part_ = std::move(part); }
    /// Changes the total, when a part of the work proves to be smaller.
    void set_total(double total) { total_ = total; }

  private:
    ProgressText text_;
    std::string part_;
    double total_;
    bool is_bar_;
    std::chrono::steady_clock::time_point begin_;
};

}  // namespace keyhole
