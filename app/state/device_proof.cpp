#include "app/state/device_proof.h"
#include "engine/device/prover.h"

#include <utility>

namespace keyhole {

void DeviceProof::start(const ProofSetup& setup, std::function<void()> wake) {
    if (running()) return;
    {
        const std::lock_guard lock(mutex_);
        part_.clear();
    }
    dismissed_ = false;
    was_running_ = true;
    job_.begin(
        [this, setup](const BackgroundJob<DeviceVerdict>::Progress& progress) {
            return prove_device(setup, [&](double share, const std::string& what) {
                {
                    const std::lock_guard lock(mutex_);
                    part_ = what;
                }
                return progress(share);
            });
        },
        std::move(wake));
}

std::string DeviceProof::part() const {
    const std::lock_guard lock(mutex_);
    return part_;
}

bool DeviceProof::refresh() {
    return std::exchange(was_running_, running()) || was_running_;
}

}  // namespace keyhole
