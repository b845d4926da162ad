"""Cases of wrong numbers, lost work and misleading words, each with the test that asserts it."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]

MISTAKE = "test_a_mistake_is_reported"
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
    "weights with another vocabulary": "test_another_vocabulary_than_that_of_the_weights_is_reported",
    "a label stands twice in a label map": "test_a_label_map_with_a_label_twice_is_refused",
    "a path of one's own component counts from the working directory": (
        "test_paths_of_a_component_count_from_the_configuration"
    ),
    "--trust does not find a module that training found": (
        "test_a_class_is_trusted_by_the_path_of_its_module_package_or_itself"
    ),
    "a report on another dev file than that of the run": (
        "test_dev_data_that_the_run_was_not_scored_on_is_reported"
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
        "test_a_dev_file_of_one_label_a_class_without_rows_and_pieces_are_reported"
    ),
    "a dev file of one class": "test_a_dev_file_of_one_label_a_class_without_rows_and_pieces_are_reported",
    "unreached n_classes": "test_a_dev_file_of_one_label_a_class_without_rows_and_pieces_are_reported",
    "a second training of a trainer that is done": "test_a_training_that_is_done_or_under_way_is_reported",
    "two trainings of one trainer at once": "test_a_training_that_is_done_or_under_way_is_reported",
    "a trainer's name that leads out of its folder": MISTAKE,
    "wrong types in calls from Python": MISTAKE,
    "batches, counts and intervals of zero or less": MISTAKE,
    "save() into the folder in which the program runs": MISTAKE,
    "pred_output_path without pred_file": "test_a_setting_without_effect_is_reported",
    "split beside a file of the same part": "test_a_split_beside_a_file_of_the_same_part_is_reported",
    "a contradiction between a row and its copy in train": (
        "test_a_row_that_stands_in_train_with_another_label_is_counted"
    ),
    "a check that counts 0 rows that also stand in train": "test_nothing_is_found_in_clean_data",
    "pairs whose similarity nothing reads, or without negatives": (
        "test_pairs_whose_number_or_negatives_are_not_used_are_reported"
    ),
    "labels of numbers beyond a cosine, weights of classes that are all 0": MISTAKE,
    "the reader of one's own as the page on customization has it": (
        "test_paths_of_a_component_count_from_the_configuration"
    ),
    "progress of another word in Python": MISTAKE,
    # Files of others
    "predictions replace a file that palm did not write": "test_what_palm_did_not_write_is_not_replaced",
    "a merge into the folder of a run": "test_a_folder_with_files_of_others_is_never_replaced",
    # First page, options, messages
    "evaluate, predict and run.sh of a new project with a helper": (
        "test_the_script_of_a_project_with_a_helper_runs_to_its_end"
    ),
    "commands that need no torch wait for it": (
        "test_commands_that_read_declarations_and_records_import_what_they_use"
    ),
    "options with hyphens and with underscores": (
        "test_hyphens_are_underscores_in_names_but_not_in_tasks_or_values"
    ),
    "figures of new projects": "test_the_promised_scores_are_those_that_the_program_measures",
    "an error of inspect or diff waits for torch": (
        "test_commands_that_read_declarations_and_records_import_what_they_use"
    ),
    "exit codes of check and of a dry run": "test_exit_codes_and_the_dry_run_of_train",
    "names of settings of Hugging Face": MISTAKE,
    "pointers of Git LFS, SQuAD 2, JSON lines, other tables": MISTAKE,
    "weights that are no numbers": "test_infinities_and_what_is_not_a_number_are_found_by_name",
    "a checkpoint to resume from that is none": (
        "test_something_other_than_a_checkpoint_to_resume_from_is_identified"
    ),
    "a later stage without a step": "test_a_later_stage_without_a_step_is_reported_before_the_first_trains",
    "one mistake has a second, false line": MISTAKE,
    "YAML's own errors one line late": MISTAKE,
    "a folder, a device or a pipe in place of a table": MISTAKE,
    "places for private_layers, trackers, callbacks and stages": MISTAKE,
    "a module that --trust names is not found, without a remedy": MISTAKE,
    "an encoder's name in place of auto and pretrain_path": MISTAKE,
    "a balance whose package is missing, and one task a step": (
        "test_a_missing_library_does_not_hide_that_a_step_has_one_task"
    ),
    "one meaning of --output, and of --json": ("test_every_command_that_writes_says_where_by_one_option"),
    "one table of exit codes": (
        "test_a_refused_command_ends_with_2_and_only_those_of_the_table_may_end_with_1"
    ),
    "options with a hyphen in the help of some commands": "test_help_has_one_style_of_options",
    "share_rows_with of a task itself": MISTAKE,
    "--tasks a=cls,a=mlm": MISTAKE,
    "--lr, and lr in --grid, --also and the files": MISTAKE,
    "a guess that is another component's setting": MISTAKE,
    "predict and evaluate stop at the first task without a file": (
        "test_the_script_of_a_project_with_a_helper_runs_to_its_end"
    ),
    "convert and export of the working directory": MISTAKE,
    "weights of BERT in a RoBERTa": "test_weights_that_are_computed_otherwise_are_refused",
    "ids as labels beside a label_map of names": MISTAKE,
    "CSV, JSON lines, Parquet, Arrow and compressed tables": "test_every_format_trains_the_same_weights",
    "several labels in one cell": MISTAKE,
    "a list of files as train_file": "test_shards_are_read_in_the_order_of_their_names",
    "the mean loss of a task none of whose steps was logged": (
        "test_the_result_has_the_mean_loss_of_tasks_none_of_whose_steps_was_logged"
    ),
    "a NaN loss only names the learning rate": "test_weights_that_are_not_numbers_are_named",
    "a stage with other sizes of the encoder ends after the first has trained": MISTAKE,
    "an optimizer waits for the compiler": "test_an_optimizer_does_not_wait_for_the_compiler",
    "messages without file and line": "test_a_wrong_value_is_one_line_with_its_place",
    # Notebooks
    "an interrupted cell of a Controller": (
        "test_an_interrupted_cell_ends_with_a_checkpoint_and_a_partial_result"
    ),
    "an interrupted cell of a Trainer": (
        "test_an_interrupted_cell_ends_with_a_partial_result_and_train_continues"
    ),
    "a second training in the same kernel": (
        "test_a_second_training_in_the_same_kernel_is_refused_or_says_that_it_starts_from_scratch"
    ),
    "log lines of a cell in forty outputs": "test_the_lines_of_a_cell_are_one_output",
    # Report, compare, transfer
    "a duplicate, flipped and random labels in the transfer report": (
        "test_a_duplicate_is_kept_and_labels_at_random_are_not"
    ),
    "one far-off look-ahead decides": "test_one_comparison_that_is_far_off_does_not_decide",
    "a transfer report without comparisons": "test_a_run_too_short_for_a_verdict_says_so",
    "verdicts corrected and intervals not; large undecided effects": (
        "test_intervals_are_corrected_as_verdicts_are_and_a_large_undecided_effect_is_reported"
    ),
    "intervals beyond what a metric can be": "test_intervals_end_where_the_metric_does",
    "what the number of seeds can show": "test_what_three_seeds_and_300_rows_can_show",
    "an earlier answer is overwritten": "test_an_earlier_answer_is_kept_when_another_replaces_it",
    "a score without baseline and interval": (
        "test_a_score_is_shown_with_its_interval_and_the_commonest_label"
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
    "best below last, and which metric decides is not said": (
        "test_the_page_marks_what_decides_and_has_defaults_memory_and_whole_names"
    ),
    "effective settings, memory of a CPU, whole names, tables that scroll": (
        "test_the_page_marks_what_decides_and_has_defaults_memory_and_whole_names"
    ),
    "one more variant turns a verdict round": (
        "test_a_variant_that_was_asked_for_changes_no_verdict_of_the_planned_ones"
    ),
    "equal ways are called different": (
        "test_at_most_one_of_twenty_comparisons_of_equal_ways_is_called_a_difference"
    ),
    "the page of a comparison has no picture of differences": (
        "test_the_page_has_verdicts_scores_and_differences"
    ),
    "the colour rule of the matrix, charts and their tables, links": (
        "test_every_chart_has_a_name_and_a_table_and_every_link_a_goal"
    ),
    "a run that was killed": "test_a_run_that_went_on_after_an_interruption_has_not_ended",
    "a hostile row in a page": "test_a_row_that_would_run_is_text_on_the_page",
    "a line of the mean of all points where few were logged": (
        "test_the_points_of_a_chart_are_those_of_the_history"
    ),
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
    "palm grid is no command": "nor was it one; the list of commands is told",
    "a log that begins with the settings": "PaddlePALM prints them; --quiet leaves them out",
    "an init project whose CRF transformers does not have": "export says so, and how to train without",
    "n_classes and do_lower_case of a reader in Python": "`palm ls reader.cls` lists the settings",
    "cards of a row with hollow feet, lone cards": "looked at; cards of one row have one height",
    "macro_f1 over the labels of truth and prediction": "docs/evaluation.md says so",
    "speed up to the last step that was logged": "the page says up to which",
    "the page of a killed run tells how to go on at its end": "under Repeat, where all commands are",
    "standard errors of rows that are 0": "the page has a dash there, which is explained",
    "decay within a tolerance of the golden runs": "test_optimizer.py compares each update with numbers",
    "words of CMRC cut otherwise than by NLTK": "docs/fidelity.md says so, with the number of rows",
    "pages printed without their bars": "print-color-adjust in the style sheet; a printer may refuse",
    "rows that teach nothing: equal candidates, choices, negatives": "public data has them",
    "a classifier of texts that predicts pairs": "a file with text_b asks for pairs",
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
