#include "app/panels/device_strip.h"

#include "app/panels/notice_strip.h"

#include <algorithm>

namespace keyhole {

namespace {

void draw_proof(const PanelContext& context) {
    const DeviceProof& proof = context.app.device_proof;
    ImGui::TextUnformatted(
        "Proving the CUDA device, once. The run is on the CPU; Keyhole will offer to start it there.");
    tooltip(context,
            "Every kernel is compared with the host, and a tiny model with the CPU: " + proof.part());
    ImGui::SameLine();
    ImGui::ProgressBar(static_cast<float>(proof.progress()), {context.px(140), ImGui::GetTextLineHeight()},
                       "");
    ImGui::SameLine();
    if (ImGui::Button("Stop")) run(context, "device.close");
    action_tooltip(context, "device.close");
    mark_item(context, "device close");
}

void draw_offer(const PanelContext& context, const DeviceVerdict& verdict) {
    ImGui::TextUnformatted(fmt::format("{}. This run is on the CPU.", text_of(verdict)).c_str());
    ImGui::SameLine();
    if (ImGui::Button("Start it again there")) run(context, "device.use");
    action_tooltip(context, "device.use");
    mark_item(context, "device use");
    ImGui::SameLine();
    if (ImGui::Button("Not now")) run(context, "device.close");
    action_tooltip(context, "device.close");
    mark_item(context, "device close");
}

void draw_failure(const PanelContext& context, const DeviceVerdict& verdict) {
    colored_text(theme::colors().fault,
                 fitted(fmt::format("{} failed its proof: {}",
                                    verdict.device.name.empty() ? "The CUDA device" : verdict.device.name,
                                    verdict.reason),
                        std::max(context.px(200), ImGui::GetIO().DisplaySize.x - context.px(480))));
    tooltip(context, verdict.reason +
                         ". The CPU is taken. `keyhole gui --backend cuda` takes the device all "
                         "the same.");
    ImGui::SameLine();
    if (!verdict.report.empty()) {
        if (ImGui::Button("Copy the report's path")) run(context, "copy " + verdict.report.string());
        tooltip(context, verdict.report.string() + ": every line of the proof, to attach to a report.");
        mark_item(context, "device report");
        ImGui::SameLine();
    }
    if (ImGui::Button("Close")) run(context, "device.close");
    action_tooltip(context, "device.close");
    mark_item(context, "device close");
}

}  // namespace

void draw_device_strip(const PanelContext& context) {
    const AppState::DeviceStrip news = context.app.device_strip();
    if (news == AppState::DeviceStrip::none) return;
    const NoticeStrip strip(context, "##device");
    ImGui::AlignTextToFramePadding();
    const std::shared_ptr<const DeviceVerdict> verdict = context.app.device_proof.verdict();
    if (news == AppState::DeviceStrip::proving)
        draw_proof(context);
    else if (news == AppState::DeviceStrip::passed)
        draw_offer(context, *verdict);
    else
        draw_failure(context, *verdict);
}

}  // namespace keyhole
