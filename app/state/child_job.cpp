#include "app/state/child_job.h"

#include "engine/base/child_process.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/number.h"

#include <optional>
#include <string_view>
#include <utility>

namespace keyhole {

namespace {

/// Returns the share that the last line of progress names: "keyhole: attribute: 37 %, 12 s left".
double share_in(std::string_view said) {
    const std::size_t end = said.rfind(" %");
    if (end == std::string_view::npos) return 0;
    const std::size_t begin = said.find_last_not_of("0123456789", end - 1) + 1;
    return number_from_text<double>(said.substr(begin, end - begin), 0.0, 100.0).value_or(0) / 100;
}

/// Throws Error(io) with the command's last line if it failed, and Error(cancelled).
void run_child(const std::vector<std::string>& command, const std::string& name,
               const BackgroundJob<bool>::Progress& progress) {
    ChildProcess child(command, {{"KEYHOLE_PROGRESS", "0.3"}});
    std::optional<int> status;
    while (!(status = child.wait_for(std::chrono::milliseconds(250))))
        if (!progress(share_in(child.output())))
            fail(ErrorCode::cancelled, "{} was cancelled; a later try goes on from there", name);
    if (*status == 0) return;
    std::string_view said = child.output();
    while (said.ends_with('\n')) said.remove_suffix(1);
    said.remove_prefix(said.rfind('\n') + 1);  // npos + 1 is 0
    if (said.starts_with("keyhole: ")) said.remove_prefix(std::string_view("keyhole: ").size());
    fail(ErrorCode::io, "{} was not made: {}", name,
         said.empty() ? fmt::format("its process ended with status {}", *status) : shown_text(said));
}

}  // namespace

void ChildJob::begin(std::vector<std::string> command, std::string name, std::function<void()> wake) {
    if (running()) return;
    began_ = std::chrono::steady_clock::now();
    job_.begin(
        [command = std::move(command),
         name = std::move(name)](const BackgroundJob<bool>::Progress& progress) {
            run_child(command, name, progress);
            return true;
        },
        std::move(wake));
    was_running_ = true;
}

double ChildJob::seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
}

ChildJob::State ChildJob::refresh() {
    const bool runs = running();
    const bool ended = std::exchange(was_running_, runs) && !runs;
    return runs ? State::runs : ended ? State::ended : State::idle;
}

}  // namespace keyhole
