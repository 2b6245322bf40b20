/// Proves the CUDA device in the background (engine/device/prover.h), while the run is on the CPU. Started
/// and queried on the window's thread.
#pragma once

#include "app/state/background_job.h"
#include "engine/base/device_verdict.h"

#include <functional>
#include <memory>
#include <mutex>
#include <string>

namespace keyhole {

struct ProofSetup;

class DeviceProof {
  public:
    /// Begins a proof, or takes the kept verdict; no effect while one runs. wake: called on any thread.
    void start(const ProofSetup& setup, std::function<void()> wake);
    /// Stops a running proof; no verdict is kept.
    void stop() { job_.cancel(); }
    /// Closes the strip until the next verdict.
    void dismiss() { dismissed_ = true; }

    bool running() const { return job_.running(); }
    double progress() const { return job_.progress(); }
    /// Returns what is being proven; empty until it is sure that the device needs a proof.
    std::string part() const;
    /// Returns the last verdict; null: none yet.
    std::shared_ptr<const DeviceVerdict> verdict() const { return job_.result(); }
    /// Returns why there is no verdict; empty if there is one.
    std::string fault() const { return job_.fault(); }
    bool dismissed() const { return dismissed_; }
    /// Returns true while a proof runs and once after it.
    bool refresh();

  private:
    mutable std::mutex mutex_;  // guards part_
    std::string part_;
    bool was_running_ = false, dismissed_ = false;
    BackgroundJob<DeviceVerdict> job_;  // last: joins first
};

}  // namespace keyhole
