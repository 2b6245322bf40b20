#include "app/state/child_job.h"

#include "engine/base/child_process.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"

#include <chrono>
#include <optional>

namespace keyhole {

void run_child(const std::vector<std::string>& command,
               const std::vector<std::pair<std::string, std::string>>& environment, std::string_view name,
               const std::function<bool(std::string_view)>& goes_on) {
    ChildProcess child(command, environment);
    std::optional<int> status;
    while (!(status = child.wait_for(std::chrono::milliseconds(250))))
        if (!goes_on(child.output()))
            fail(ErrorCode::cancelled, "{} was cancelled; a later try goes on from there", name);
    if (*status == 0) return;
    std::string_view said = child.output();
    while (said.ends_with('\n')) said.remove_suffix(1);
    said.remove_prefix(said.rfind('\n') + 1);  // npos + 1 is 0
    if (said.starts_with("keyhole: ")) said.remove_prefix(std::string_view("keyhole: ").size());
    fail(ErrorCode::io, "{} was not made: {}", name,
         said.empty() ? fmt::format("its process ended with status {}", *status) : shown_text(said));
}

}  // namespace keyhole
