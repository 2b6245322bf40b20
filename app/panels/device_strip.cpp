#include "app/panels/device_strip.h"

#include "app/panels/notice_strip.h"

#include <algorithm>

namespace keyhole {

namespace {

void draw_proof(NoticeStrip& strip, const PanelContext& context) {
    const DeviceProof& proof = context.app.device_proof;
    strip.text("Proving the CUDA device, once. The run is on the CPU; Keyhole will offer to start it there.");
    tooltip(context,
            "Every kernel is compared with the host, and a tiny model with the CPU: " + proof.part());
    strip.next(context.px(140));
    ImGui::ProgressBar(static_cast<float>(proof.progress()), {context.px(140), ImGui::GetTextLineHeight()},
                       "");
    if (strip.button("Stop")) run(context, "device.close");
    action_tooltip(context, "device.close");
    mark_item(context, "device close");
}

void draw_offer(NoticeStrip& strip, const PanelContext& context, const DeviceVerdict& verdict) {
    strip.text(fmt::format("{}. This run is on the CPU.", text_of(verdict)));
    if (strip.button("Start it again there")) run(context, "device.use");
    action_tooltip(context, "device.use");
    mark_item(context, "device use");
    if (strip.button("Not now")) run(context, "device.close");
    action_tooltip(context, "device.close");
    mark_item(context, "device close");
}

void draw_failure(NoticeStrip& strip, const PanelContext& context, const DeviceVerdict& verdict) {
    colored_text(theme::colors().fault,
                 fitted(fmt::format("{} failed its proof: {}",
                                    verdict.device.name.empty() ? "The CUDA device" : verdict.device.name,
                                    verdict.reason),
                        std::max(context.px(200), ImGui::GetIO().DisplaySize.x - context.px(480))));
    tooltip(context, verdict.reason +
                         ". The CPU is taken. `keyhole gui --backend cuda` takes the device all "
                         "the same.");
    if (!verdict.report.empty()) {
        if (strip.button("Copy the report's path")) run(context, "copy " + verdict.report.string());
        tooltip(context, verdict.report.string() + ": every line of the proof, to attach to a report.");
        mark_item(context, "device report");
    }
    if (strip.button("Close")) run(context, "device.close");
    action_tooltip(context, "device.close");
    mark_item(context, "device close");
}

}  // namespace

void draw_device_strip(const PanelContext& context) {
    const AppState::DeviceStrip news = context.app.device_strip();
    if (news == AppState::DeviceStrip::none) return;
    NoticeStrip strip(context, "##device");
    const std::shared_ptr<const DeviceVerdict> verdict = context.app.device_proof.verdict();
    if (news == AppState::DeviceStrip::proving)
        draw_proof(strip, context);
    else if (news == AppState::DeviceStrip::passed)
        draw_offer(strip, context, *verdict);
    else
        draw_failure(strip, context, *verdict);
}

}  // namespace keyhole
