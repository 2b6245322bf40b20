#include "app/cli/progress.h"

#include "app/cli/output.h"
#include "engine/base/number.h"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace keyhole {

namespace {

constexpr double kBarEvery_s = 0.1, kLineEvery_s = 10;

/// Returns the seconds between two lines: those of KEYHOLE_PROGRESS, or `off`.
double line_seconds() {
    const char* text = std::getenv("KEYHOLE_PROGRESS");
    if (text == nullptr || *text == '\0') return kLineEvery_s;
    if (std::string_view(text) == "off") return -1;
    return number_from_text<double>(text, 0.0, 1e6).value_or(kLineEvery_s);
}

bool on_terminal() {
    return ::isatty(STDERR_FILENO) != 0;
}

std::string time_left(double seconds, double share) {
    // Before, one slow beginning (a prompt, a cold file) would stand for the whole.
    if (seconds < 2 || share < 0.02) return "";
    const double rest = seconds / share * (1 - share);
    return rest < 120 ? fmt::format("{:.0f} s left", rest) : fmt::format("{:.0f} min left", rest / 60);
}

}  // namespace

ProgressText::ProgressText(std::string title, bool is_bar, double every_s)
    : title_(std::move(title)), is_bar_(is_bar), every_s_(every_s), next_s_(is_bar ? 0 : every_s) {}

std::string ProgressText::at(double seconds, double share, std::string_view part) {
    if (every_s_ < 0 || seconds < next_s_) return "";
    share = std::clamp(share, 0.0, 1.0);
    const std::string left = time_left(seconds, share);
    const std::string name = part.empty() ? title_ : fmt::format("{}, {}", title_, part);
    if (is_bar_) {
        next_s_ = seconds + every_s_;
        constexpr int kWidth = 30;
        const std::string bar(static_cast<std::size_t>(share * kWidth), '#');
        return fmt::format("{} [{:<{}}] {:3.0f} % {}", name, bar, kWidth, 100 * share, left);
    }
    // An hour's work gets some thirty lines, not hundreds.
    next_s_ = seconds + (every_s_ == 0 ? 0 : std::max(every_s_, seconds / 10));
    return fmt::format("keyhole: {}: {:.0f} %{}{}\n", name, 100 * share, left.empty() ? "" : ", ", left);
}

Progress::Progress(std::string title, double total)
    : text_(std::move(title), on_terminal(),
            on_terminal() && line_seconds() >= 0 ? kBarEvery_s : line_seconds()),
      total_(total),
      is_bar_(on_terminal()),
      begin_(std::chrono::steady_clock::now()) {}

Progress::~Progress() {
    if (is_bar_) show_bar("");
}

void Progress::update(double done) {
    if (total_ <= 0) return;
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin_;
    const std::string text = text_.at(seconds.count(), done / total_, part_);
    if (text.empty()) return;
    if (is_bar_)
        show_bar(text);
    else
        write_note(text);
}

}  // namespace keyhole
