"""Cases of wrong numbers, lost work and misleading words, each with the test that asserts it."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]

MISTAKE = "test_a_mistake_is_told"
"""A line of `helpers/mistakes.py` or `helpers/mistakes.jsonl`."""

CASES = {
    # Wrong numbers without a word
    "a head is taken over though its labels have other ids": (
        "test_weights_of_other_labels_or_tokens_are_refused"
    ),
    "an encoder is taken over though its vocabulary is another": (
        "test_weights_of_other_labels_or_tokens_are_refused"
    ),
    "tasks with one head give a label two ids": "test_tasks_with_one_head_have_one_id_for_a_label",
    "weights with another vocabulary than theirs": "test_another_vocabulary_than_that_of_the_weights_is_told",
    "a label stands twice in a label map": "test_a_label_map_with_a_label_twice_is_refused",
    "a path of one's own component counts from the working directory": (
        "test_paths_of_a_component_count_from_the_configuration"
    ),
    "--trust does not find a module that training found": (
        "test_a_class_is_trusted_by_the_path_of_its_module_package_or_itself"
    ),
    "a report on another dev file than that of the run": (
        "test_dev_data_that_the_run_was_not_scored_on_is_told"
    ),
    "a hook of 2.x below a built-in class is never called": (
        "test_a_hook_of_2_x_below_a_class_of_palm_is_refused"
    ),
    "ERNIE with 14 positions": "test_an_encoder_takes_the_positions_of_every_2_x",
    "is_decoder and its like in a foreign config.json": (
        "test_a_setting_of_others_that_computes_otherwise_is_refused"
    ),
    "is_decoder in the JSON of an encoder that starts at random": (
        "test_what_computes_otherwise_is_refused_for_random_weights_too"
    ),
    "palm check of a run with start_from": "test_weights_of_other_labels_or_tokens_are_refused",
    "predict() of a trainer that was never trained": "test_a_prediction_with_weights_of_nobody_says_so",
    "two stages with one name": "test_everything_wrong_with_all_stages_is_one_report",
    "thresholds of a few dev rows decide which step of a new project is best": (
        "test_what_a_project_trains_can_be_learnt"
    ),
    "quantized weights": "test_quantized_weights_are_refused",
    "rows that differ in case or accents only contradict": "test_rows_are_compared_as_the_model_sees_them",
    "a vocabulary that cuts words into letters": (
        "test_a_dev_file_of_one_label_a_class_without_rows_and_pieces_are_told"
    ),
    "a dev file of one class": "test_a_dev_file_of_one_label_a_class_without_rows_and_pieces_are_told",
    "n_classes that no row reaches": "test_a_dev_file_of_one_label_a_class_without_rows_and_pieces_are_told",
    "a second training of a trainer that is done": "test_a_training_that_is_done_or_under_way_is_told",
    "two trainings of one trainer at once": "test_a_training_that_is_done_or_under_way_is_told",
    "a trainer's name that leads out of its folder": MISTAKE,
    "wrong types in calls from Python": MISTAKE,
    "batches, counts and intervals of zero or less": MISTAKE,
    "save() into the folder in which the program runs": MISTAKE,
    "pred_output_path without pred_file, metrics without dev data": "test_a_setting_without_effect_is_told",
    "split beside a file of the same part": "test_a_split_beside_a_file_of_the_same_part_is_told",
    # Files of others
    "predictions replace a file that palm did not write": "test_what_palm_did_not_write_is_not_replaced",
    "a merge into the folder of a run": "test_a_folder_with_files_of_others_is_never_replaced",
    # First page, options, messages
    "evaluate, predict and run.sh of a new project with a helper": (
        "test_the_script_of_a_project_with_a_helper_runs_to_its_end"
    ),
    "commands that need no torch wait for it": (
        "test_commands_that_read_declarations_and_records_do_not_wait_for_torch"
    ),
    "options with hyphens and with underscores": (
        "test_hyphens_are_underscores_in_names_but_not_in_tasks_or_values"
    ),
    "figures of new projects": "test_what_a_project_trains_can_be_learnt",
    "an error of inspect or diff waits for torch": (
        "test_commands_that_read_declarations_and_records_do_not_wait_for_torch"
    ),
    "exit codes of check and of a dry run": "test_exit_codes_and_the_dry_run_of_train",
    "names of settings of Hugging Face": MISTAKE,
    "pointers of Git LFS, SQuAD 2, JSON lines, other tables": MISTAKE,
    "weights that are no numbers": "test_infinities_and_what_is_not_a_number_are_found_by_name",
    "a checkpoint to resume from that is none": (
        "test_what_is_no_checkpoint_to_resume_from_is_told_as_what_it_is"
    ),
    "a later stage without a step": "test_a_later_stage_without_a_step_is_told_before_the_first_trains",
    "one mistake has a second, false line": MISTAKE,
    "YAML's own errors one line late": MISTAKE,
    "a folder, a device or a pipe in place of a table": MISTAKE,
    "places for private_layers, trackers, callbacks and stages": MISTAKE,
    "a module that --trust names is not found, without a remedy": MISTAKE,
    "an encoder's name in place of auto and pretrain_path": MISTAKE,
    "a balance whose package is missing, and one task a step": (
        "test_a_missing_library_does_not_hide_that_a_step_has_one_task"
    ),
    # Notebooks
    "an interrupted cell of a Controller": (
        "test_an_interrupted_cell_ends_with_a_checkpoint_and_a_partial_result"
    ),
    "an interrupted cell of a Trainer": (
        "test_an_interrupted_cell_ends_with_a_partial_result_and_train_goes_on"
    ),
    "a second training in the same kernel": (
        "test_a_second_training_in_the_same_kernel_is_refused_or_says_that_it_starts_anew"
    ),
    "log lines of a cell in forty outputs": "test_the_lines_of_a_cell_are_one_output",
    # Report, compare, transfer
    "a duplicate, flipped and random labels in the transfer report": (
        "test_a_duplicate_is_kept_and_labels_at_random_are_not"
    ),
    "one far-off look-ahead decides": "test_one_comparison_that_is_far_off_does_not_decide",
    "a transfer report without comparisons": "test_a_run_too_short_for_a_verdict_says_so",
    "verdicts corrected and intervals not; large undecided effects": (
        "test_intervals_are_corrected_as_verdicts_are_and_a_large_undecided_effect_is_told"
    ),
    "intervals beyond what a metric can be": "test_intervals_end_where_the_metric_does",
    "what the number of seeds can show": "test_what_three_seeds_and_300_rows_can_show",
    "an earlier answer is overwritten": "test_an_earlier_answer_is_kept_when_another_takes_its_place",
    "a score without baseline and interval": (
        "test_a_score_stands_beside_its_interval_and_the_commonest_label"
    ),
    "a page of twelve tasks": "test_more_tasks_than_a_screen_holds_are_folded",
    "a hyphen for a minus, and -0.00": "test_numbers_have_a_minus_sign_and_no_negative_zero",
    "letters of nine pixels in charts": (
        "test_letters_of_charts_have_twelve_pixels_where_a_chart_is_narrowest"
    ),
    "more tasks than colours": "test_colours_that_come_again_have_another_dash",
    "a helper with dev data is not analysed": (
        "test_a_task_that_only_helps_is_predicted_by_the_last_checkpoint"
    ),
    "the legend covers a plot in the terminal; ticks": "test_the_terminal_gets_text",
    "points twice in a tracker after a resume": "test_a_resumed_run_has_no_point_twice_in_trackio",
    # Machine
    "auto precision by wall time, by products of other shapes": (
        "test_auto_times_a_pass_over_the_rows_of_the_run_and_changes_no_loss"
    ),
    "threads that spin on a busy machine": (
        "test_waiting_threads_sleep_soon_unless_the_environment_says_otherwise"
    ),
}
"""What happened -> the test."""

LEFT_OUT = {
    "save_path: $HOME/x makes a folder of that name": "names are taken as written; the log names the folder",
    "NUL within a text": "a character like others",
    "batch_size beside max_tokens_per_batch": "it counts where rows are predicted; the page says in place of",
    "two lines with different bounds for one number": "the setting's, and what this task makes of it",
    "palm itself without torch": "a dependency; ls, init, inspect and diff run without",
    "unused settings in the JSON of an encoder": "it is of others, who write more than an encoder takes",
    "training on a dev file, or on one label": "palm check tells it, before the run",
    "'none' is taken for 'cosine'": "the message lists all names before the guess",
    "a name of the Hub in place of a data file": "a path like others; docs/data.md has how to load it",
    "a learning rate that is overruled is not a number": "only the value that counts is read",
    "learning_rate 10": "no bound is right for every optimizer; a loss that is not finite stops the run",
    "random labels, a leak with one word changed": "no check can know it",
    "metrics of an unknown name without dev data": "a warning says that metrics have no effect there",
}
"""What happened -> why no test asserts anything else."""


def test_every_case_has_its_test_or_a_reason() -> None:
    known = {
        node.name
        for file in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    assert set(CASES.values()) - known == set()
    assert not CASES.keys() & LEFT_OUT.keys()
