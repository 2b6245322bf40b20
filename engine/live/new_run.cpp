#include "engine/live/new_run.h"

#include "engine/backend/shared_backend.h"
#include "engine/base/load_listener.h"
#include "engine/device/make_backend.h"
#include "engine/live/engine.h"
#include "engine/model/described_model.h"
#include "engine/model/weight_files.h"
#include "engine/run/prompt.h"

#include <fmt/ranges.h>

namespace keyhole {

namespace {

std::string joined(const std::string& first, const std::string& second) {
    return first + (first.empty() || second.empty() ? "" : "; ") + second;
}

std::string warning_text(const Model& model) {
    const std::string warnings = fmt::format("{}", fmt::join(model.warnings(), "; "));
    return warnings.empty() ? "" : "warning: " + warnings;
}

}  // namespace

NewRun prepare_run(const CurrentRun& current, const BackendOptions& options,
                   const std::filesystem::path& model_folder, const RunSpec& run, bool new_backend,
                   const std::function<void(double share)>& on_loading) {
    NewRun next;
    next.model = current.model;
    const bool same_model =
        next.model != nullptr && next.model->path() == model_folder && WeightFiles(*next.model).unchanged();
    if (!same_model || current.backend == nullptr || new_backend) {
        on_loading(0);
        // Weights in another order are copied first, then the backend makes of all of them what it reads.
        constexpr double kCopied = 0.2;
        if (!same_model)
            next.model = load_model(model_folder, [&](double share) { on_loading(kCopied * share); });
        const LoadListener listener([&](double share) { on_loading(kCopied + (1 - kCopied) * share); });
        next.backend = make_backend(next.model, options, &next.notice);
        if (next.backend->on_device())
            next.backend = std::make_shared<SharedBackend>(std::move(next.backend));
        next.notice = joined(warning_text(*next.model), next.notice);
    }
    if (run.chat) next.notice = joined(next.notice, chat_notice(*next.model));
    Backend& runs_on = next.backend != nullptr ? *next.backend : *current.backend;
    next.session = std::make_unique<Session>(next.model, runs_on, run, nullptr, kCheckpointBytes);
    return next;
}

}  // namespace keyhole
